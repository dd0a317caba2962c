"""Generators that hand over to another generator."""
# cluster: 2 CPU

import ray

ray.init()


def inner(n):
    for i in range(n):
        yield i


@ray.remote
def delegates(n):
    yield from inner(n)
    yield "end"


@ray.remote
def delegates_to_iterator(n):
    yield from range(n)


@ray.remote
def chained(refs):
    for ref in refs:
        yield ray.get(ref) + 1


print([ray.get(ref) for ref in delegates.remote(3)])
try:
    print([ray.get(ref) for ref in delegates_to_iterator.remote(3)])
except AttributeError as error:
    print(type(error).__name__, error.cause)
print([ray.get(ref) for ref in chained.remote(list(delegates.remote(0)) and [ray.put(1)])])
