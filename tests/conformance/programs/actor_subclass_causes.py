"""Actors: subclasses, methods that replace each other, generators with limits, exits and causes."""
# cluster: 2 CPU

import asyncio
import time

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


class Base:
    def hello(self):
        return "base"

    def who(self):
        return type(self).__name__


@ray.remote
class Child(Base):
    def hello(self):
        return "child " + super().hello()

    def __call__(self, x):
        return x

    def _private(self):
        return "p"

    def __getitem__(self, k):
        return k


c = Child.remote()
say("hello", lambda: ray.get(c.hello.remote()))
say("who", lambda: ray.get(c.who.remote()))
say("private", lambda: ray.get(c._private.remote()))
say("call", lambda: ray.get(c.__call__.remote(3)))
say("item", lambda: ray.get(c.__getitem__.remote("k")))
say("ready", lambda: ray.get(c.__ray_ready__.remote()))
say("run", lambda: ray.get(c.__ray_call__.remote(lambda self, x: (type(self).__name__, x), 2)))
say("term", lambda: ray.get(c.__ray_terminate__.remote()))
say("after", lambda: ray.get(c.hello.remote()))


class Mine(Exception):
    def __init__(self, a, b):
        super().__init__(a, b)
        self.a, self.b = a, b


@ray.remote
class Fails:
    def plain(self):
        raise ValueError("no")

    def mine(self):
        raise Mine(1, 2)

    def chained(self):
        try:
            1 / 0
        except ZeroDivisionError as e:
            raise KeyError("k") from e

    def exits(self):
        ray.actor.exit_actor()

    def sysexit(self):
        raise SystemExit(3)

    def stop(self):
        raise StopIteration

    def kb(self):
        raise KeyboardInterrupt

    def gen(self):
        yield 1
        raise ValueError("in gen")

    def nested(self, h):
        return ray.get(h.plain.remote())

    def task(self):
        return ray.get(boom.remote())


@ray.remote
def boom():
    raise IndexError("boom")


x = Fails.remote()


def shape(call):
    try:
        return call()
    except BaseException as e:
        out = []
        while e is not None:
            out.append(
                (
                    type(e).__name__,
                    isinstance(e, RayTaskError),
                    str(e).strip().splitlines()[-1] if str(e) else "",
                )
            )
            e = e.__cause__
        return out


y = Fails.remote()
for name in ("plain", "mine", "chained", "stop", "task"):
    say(name, lambda name=name: shape(lambda: ray.get(getattr(x, name).remote())))
say("nested", lambda: shape(lambda: ray.get(x.nested.remote(y))))
say(
    "gen",
    lambda: [
        shape(lambda r=r: ray.get(r)) for r in x.gen.options(num_returns="streaming").remote()
    ],
)
say("exits", lambda: shape(lambda: ray.get(y.exits.remote()))[0][0])
say("then", lambda: shape(lambda: ray.get(y.plain.remote()))[0][0])


def attrs():
    try:
        ray.get(x.mine.remote())
    except Mine as e:
        return (
            e.args,
            getattr(e, "a", None),
            type(e.cause).__name__,
            e.cause.args,
            type(e).__mro__[1].__name__,
        )


say("attrs", attrs)


@ray.remote
class Slow:
    def __init__(self):
        self.log = []

    async def wait(self, s, tag):
        await asyncio.sleep(s)
        self.log.append(tag)
        return tag

    async def agen(self, n):
        for i in range(n):
            yield i

    async def seen(self):
        return self.log


s = Slow.options(max_concurrency=2).remote()
refs = [s.wait.remote(1.2, "a"), s.wait.remote(0.4, "b"), s.wait.remote(0.3, "c")]
say("agen", lambda: [ray.get(r) for r in s.agen.options(num_returns="streaming").remote(3)])


async def drive():
    out = []
    async for r in s.agen.options(num_returns="streaming").remote(3):
        out.append(await r)
    return (
        out,
        await s.wait.remote(0, "z"),
        await asyncio.gather(*[s.wait.remote(0, i) for i in range(2)]),
    )


say("drive", lambda: asyncio.run(drive()))
say("timeout", lambda: asyncio.run(asyncio.wait_for(_w(), 0.3)))


async def _w():
    return await s.wait.remote(3, "t")


say("timeout2", lambda: asyncio.run(asyncio.wait_for(_w(), 0.3)))


@ray.remote(num_cpus=0)
class Producer:
    def __init__(self):
        self.made = 0

    @ray.method(num_returns="streaming", _generator_backpressure_num_objects=2)
    def go(self):
        for i in range(6):
            self.made += 1
            yield i


p = Producer.options(max_concurrency=2).remote()
g = p.go.remote()
time.sleep(1.5)
say("back", lambda: ray.get(p.__ray_call__.remote(lambda self: self.made)))
say(
    "next",
    lambda: (
        ray.get(next(g)),
        time.sleep(0.6),
        ray.get(p.__ray_call__.remote(lambda self: self.made)),
    ),
)
say("rest", lambda: [ray.get(r) for r in g])
say("done", lambda: next(g))
context = ray.get_runtime_context()
say(
    "job",
    lambda: (context.get_job_id() != "", context.get_task_id() is None, context.get_actor_id()),
)
say("rest", lambda: (context.namespace != "", context.get_assigned_resources()))


@ray.remote(num_cpus=1, max_restarts=1, name="named")
class Ctx:
    def all(self):
        k = ray.get_runtime_context()
        return (
            sorted(k.get()),
            k.get_actor_name(),
            k.get_task_name(),
            k.get_task_function_name(),
            k.get_assigned_resources(),
            k.was_current_actor_reconstructed,
            k.current_actor._actor_id.hex() == k.get_actor_id(),
            k.get_placement_group_id(),
            k.should_capture_child_tasks_in_placement_group,
        )


k = Ctx.remote()
say("actor ctx", lambda: ray.get(k.all.remote()))
say("again", lambda: Ctx.remote())
say("names", lambda: ray.util.list_named_actors())
say("method opts", lambda: ray.get(k.all.options(name="special").remote())[2])
say("neg", lambda: k.all.options(num_returns=-1).remote())
say("bind", lambda: type(k.all.bind()).__name__)
