"""Several return values, none, and the wrong number of them."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote(num_returns=3)
def three(x):
    return x, [x], {"x": x}


@ray.remote
def pair():
    return 1, 2


@ray.remote(num_returns=0)
def nothing():
    return None


@ray.remote(num_returns=2)
def wrong(n):
    return tuple(range(n))


a, b, c = three.remote(7)
print(ray.get(a), ray.get(b), ray.get(c))
print(ray.get([c, a]))
print(ray.get(pair.remote()))
first, second = pair.options(num_returns=2).remote()
print(ray.get(second), ray.get(first))
print(nothing.remote())
print(ray.get(nothing.options(num_returns=1).remote()))
for n in (1, 3):
    for ref in wrong.remote(n):
        try:
            ray.get(ref)
        except ray.exceptions.RayTaskError as error:
            print(n, type(error.cause).__name__, error.cause)
try:
    pair.options(num_returns=2).remote(1)
except TypeError as error:
    print("TypeError", error)
