"""Tasks that call tasks: recursion deeper than the number of CPUs, and references in results."""

import ray


@ray.remote
def fibonacci(n):
    if n < 2:
        return n
    return sum(ray.get([fibonacci.remote(n - 1), fibonacci.remote(n - 2)]))


@ray.remote
def child(x):
    return x * 10


@ray.remote
def parent(x):
    return [child.remote(x + i) for i in range(3)]


@ray.remote
def consume(refs):
    return sum(ray.get(refs))


if __name__ == "__main__":
    ray.init(num_cpus=4)
    print(ray.get(fibonacci.remote(6)))
    refs = ray.get(parent.remote(1))
    print(ray.get(refs))
    print(ray.get(consume.remote(refs)))
    print(ray.get(consume.remote(ray.get(parent.remote(5)))))
    ray.shutdown()
