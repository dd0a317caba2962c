"""A remote function takes along what it refers to, once, when it is first called."""
# cluster: 2 CPU

import ray

ray.init()
factor = 2
table = {"a": 1}


@ray.remote
def scaled(x):
    return factor * x


@ray.remote
def grow():
    table["b"] = 2
    return sorted(table)


print(ray.get(scaled.remote(3)))
factor = 10
print(ray.get(scaled.remote(3)))


@ray.remote
def scaled(x):
    return factor * x


print(ray.get(scaled.remote(3)))
print(ray.get(grow.remote()), sorted(table))


def power(n):
    @ray.remote
    def raised(x):
        return x**n

    return raised


print(ray.get([power(n).remote(2) for n in range(4)]))
shared = ray.put([1, 2, 3])


@ray.remote
def length():
    return len(ray.get(shared))


print(ray.get(length.remote()))
