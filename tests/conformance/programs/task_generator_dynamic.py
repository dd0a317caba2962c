"""num_returns="dynamic": one reference that holds a generator of references."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_returns="dynamic")
def split(items, size):
    for at in range(0, len(items), size):
        yield items[at : at + size]


@ray.remote
def lengths(pieces):
    return [len(ray.get(piece)) for piece in pieces]


@ray.remote(num_returns="dynamic")
def fails():
    yield 1
    raise KeyError("gone")


ref = split.remote(list(range(10)), 4)
print(type(ref).__name__)
pieces = ray.get(ref)
print(type(pieces).__name__, [ray.get(piece) for piece in pieces])
print(ray.get(lengths.remote(split.remote("abcdefg", 3))))
pieces = ray.get(fails.remote())
for piece in pieces:
    try:
        print(ray.get(piece))
    except KeyError as error:
        print(type(error).__name__)
