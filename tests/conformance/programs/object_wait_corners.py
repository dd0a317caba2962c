"""ray.wait: duplicates, order, more than asked for, nothing to wait for, other kinds of objects."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
def after(seconds, value):
    time.sleep(seconds)
    return value


@ray.remote(num_cpus=0)
def fails():
    raise ValueError("no")


@ray.remote(num_cpus=0)
def counts(n):
    for i in range(n):
        yield i


def names(refs, by):
    return [by[ref] for ref in refs]


def attempt(*args, **kwargs):
    try:
        ready, left = ray.wait(*args, **kwargs)
        return len(ready), len(left)
    except Exception as error:
        return type(error).__name__, str(error)[:60]


a = ray.put("a")
print("duplicates", attempt([a, a]))
print("same object, other handle", attempt([a, ray.ObjectRef(a.binary())]))
print("none", attempt([]), attempt([], num_returns=3, timeout=0))
print("zero", attempt([a], num_returns=0))
print("negative", attempt([a], num_returns=-1))
print("too many", attempt([a], num_returns=2))
print("no list", attempt(a), attempt((a,)), attempt({a}))
print("values", attempt(["a"]))
print("timeout", attempt([a], timeout=-1), attempt([a], timeout=0))
slow, quick, middle = after.remote(30, "s"), after.remote(0, "q"), after.remote(0, "m")
time.sleep(2)
by = {slow: "slow", quick: "quick", middle: "middle", a: "a"}
ready, left = ray.wait([slow, middle, quick], num_returns=1)
print(ready[0] in (middle, quick), len(left), left[0] == slow)
ready, left = ray.wait([slow, middle, quick], num_returns=2)
print(names(ready, by), names(left, by))
ready, left = ray.wait([quick, slow, a, middle], num_returns=4, timeout=0.5)
print(names(ready, by), names(left, by))
ready, left = ray.wait([middle, quick], num_returns=2, timeout=0)
print(names(ready, by), names(left, by))
error = fails.remote()
print("an error is ready", attempt([error], timeout=10))
print("again", attempt([error]), attempt([error]))
generator = counts.remote(3)
time.sleep(1)
ready, left = ray.wait([generator, slow], timeout=10)
print([type(x).__name__ for x in ready], len(left))
print([ray.get(ref) for ref in generator])
ready, left = ray.wait([generator, slow], timeout=10)
print("at its end", [type(x).__name__ for x in ready], len(left))
inside = ray.put([slow, a])
print("a container is ready", attempt([inside], timeout=5))
began = time.time()
print(attempt([slow], timeout=0.5), 0.4 < time.time() - began < 5)
lazy = after.remote(0, bytes(500_000))
print("not fetched", attempt([lazy], timeout=20, fetch_local=False))
ray.cancel(slow)
print("cancelled is ready", attempt([slow], timeout=10))
