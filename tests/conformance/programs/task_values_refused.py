"""Options, arguments and calls that Ray refuses, and how; what functions and refs look like."""
# cluster: 2 CPU

import ray
from ray.exceptions import RayTaskError


def say(label, call):
    try:
        print(label, call())
    except RayTaskError as error:
        print(label, "task error", type(error.cause).__name__)
    except Exception as error:
        print(label, type(error).__name__, str(error).splitlines()[:1])


ray.init()


@ray.remote
def f(x=1, *a, **k):
    return x, a, k


@ray.remote
class A:
    def __init__(self, n=0):
        self.n = n

    def get(self):
        return self.n

    def inc(self, by=1):
        self.n += by
        return self.n

    @ray.method(num_returns=2)
    def two(self):
        return 1, 2

    @staticmethod
    def st(x):
        return x

    @property
    def prop(self):
        return 5

    @classmethod
    def cm(cls):
        return cls.__name__


say("call", lambda: f())
say("ctor", lambda: A())
a = A.remote(3)
say("meth", lambda: a.get())
say("no meth", lambda: a.zzz.remote())
say("args", lambda: ray.get(f.remote(1, 2, k=3)))
say("too many", lambda: ray.get(a.get.remote(1)))
say("bad kw", lambda: ray.get(a.inc.remote(foo=1)))
say("two", lambda: ray.get(a.two.remote()))
say("static", lambda: ray.get(a.st.remote(4)))
say("class", lambda: ray.get(a.cm.remote()))
say("prop", lambda: ray.get(a.prop.remote()))
for options in (
    {"num_cpus": -1},
    {"num_cpus": "x"},
    {"num_returns": -1},
    {"num_returns": 0},
    {"foo": 1},
    {"resources": {"CPU": 1}},
    {"resources": [1]},
    {"max_retries": -2},
    {"num_gpus": 1.5},
    {"num_gpus": 0.00001},
    {"memory": -1},
    {"runtime_env": 5},
    {"name": 5},
    {"max_calls": 1},
    {"retry_exceptions": 5},
    {"max_concurrency": 2},
    {"lifetime": "detached"},
    {"placement_group": 5},
    {"num_returns": "foo"},
    {"label_selector": {"a": 5}},
    {"_metadata": {}},
    {"accelerator_type": 5},
):
    say(options, lambda options=options: f.options(**options) is not None)
    say(
        "  call",
        lambda options=options: (
            type(f.options(**options).remote()).__name__
            if "num_gpus" not in options
            and "accelerator_type" not in options
            and "label_selector" not in options
            else 0
        ),
    )
for options in (
    {"max_restarts": -2},
    {"max_task_retries": -2},
    {"max_concurrency": 0},
    {"lifetime": "foo"},
    {"name": ""},
    {"name": 5},
    {"namespace": ""},
    {"get_if_exists": True},
    {"concurrency_groups": 5},
    {"max_retries": 1},
    {"num_returns": 2},
    {"foo": 1},
    {"max_pending_calls": -2},
    {"num_cpus": -1},
    {"resources": {"GPU": 1}},
    {"enable_task_events": 5},
    {"allow_out_of_order_execution": True},
):
    say(options, lambda options=options: A.options(**options) is not None)
    say("  call", lambda options=options: type(A.options(**options).remote()).__name__)
say("get int", lambda: ray.get(5))
say("get list", lambda: ray.get([5]))
say("get tuple", lambda: ray.get((ray.put(1),)))
say("get dict", lambda: ray.get({"a": ray.put(1)}))
say("get set", lambda: ray.get({ray.put(1)}))
say("get empty", lambda: ray.get([]))
say("put ref", lambda: ray.put(ray.put(1)))
say("wait int", lambda: ray.wait(5))
say("wait empty", lambda: ray.wait([]))
say("wait dup", lambda: ray.wait([ray.put(1)] * 2))
say("wait 0", lambda: ray.wait([ray.put(1)], num_returns=0))
say("wait more", lambda: ray.wait([ray.put(1)], num_returns=2))
say("wait neg", lambda: ray.wait([ray.put(1)], timeout=-1))
say("get neg", lambda: ray.get(ray.put(1), timeout=-1))
say("kill ref", lambda: ray.kill(ray.put(1)))
say("cancel int", lambda: ray.cancel(5))
say("cancel put", lambda: ray.cancel(ray.put(1)))
say("get_actor", lambda: ray.get_actor("nope"))
say("get_actor none", lambda: ray.get_actor(""))
say("remote int", lambda: ray.remote(5))
say("remote args", lambda: ray.remote(1, 2))
say("remote twice", lambda: ray.remote(f))
say("method", lambda: ray.method(foo=1))
say("method name", lambda: f.__name__)
say("bool", lambda: bool(ray.put(1)))
say(
    "ref types",
    lambda: (type(ray.put(1)), type(f.remote()), len(ray.put(1).hex()), len(ray.put(1).binary())),
)
say("nil", lambda: ray.ObjectRef.nil().hex() == "f" * 56)
say("future", lambda: ray.put(3).future().result())
say("init again", lambda: ray.init())
say("init ignore", lambda: type(ray.init(ignore_reinit_error=True)).__name__)
say("lambda", lambda: ray.get(ray.remote(lambda x: x + 1).remote(1)))
say("partial", lambda: __import__("functools").partial(f, 1)())
say("isinst", lambda: isinstance(a, ray.actor.ActorHandle))
say("local", lambda: ray.is_initialized())
say("dynamic", lambda: ray.get(f.options(num_returns="dynamic").remote()))
say("two of one", lambda: ray.get(f.options(num_returns=2).remote()))
say("three", lambda: len(ray.get(f.options(num_returns=3).remote())))
