"""Streaming generators: one reference per yielded value."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def count(n):
    for i in range(n):
        yield i * i


@ray.remote
def broken(n):
    for i in range(n):
        yield i
    raise ValueError("no more")


@ray.remote
def total(*values):
    return sum(values)


gen = count.remote(4)
print(type(gen).__name__)
print([ray.get(ref) for ref in gen])
gen = count.remote(2)
print(ray.get(next(gen)), ray.get(next(gen)))
try:
    next(gen)
except StopIteration:
    print("StopIteration")
print(ray.get(total.remote(*count.remote(5))))
print(list(count.remote(0)))

gen = broken.remote(2)
for ref in gen:
    try:
        print("item", ray.get(ref))
    except ValueError as error:
        print("failed", type(error).__name__, error.cause)
gen = count.remote(3)
ray.get(gen.completed())
ready, waiting = ray.wait([gen], timeout=5)
print(len(ready), len(waiting), ray.get(next(gen)))
gen = count.options(num_returns="streaming").remote(2)
print(type(gen).__name__, len(list(gen)))
