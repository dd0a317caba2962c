"""Tasks that start tasks and wait for them, deeper than there are CPUs."""
# cluster: 2 CPU

import ray

ray.init()


@ray.remote
def factorial(n):
    return 1 if n == 0 else n * ray.get(factorial.remote(n - 1))


@ray.remote
def leaf(x):
    return x * x


@ray.remote
def parent(n):
    return sum(ray.get([leaf.remote(i) for i in range(n)]))


@ray.remote
def promise(x):
    return leaf.remote(x)


print("factorial", ray.get(factorial.remote(4)))
print("parents", ray.get([parent.remote(n) for n in (2, 3, 4)]))
inner = ray.get(promise.remote(5))
print(type(inner).__name__, ray.get(inner))
