"""Yielded arrays go through the object store; a consumer may be slower than the producer."""
# cluster: 2 CPU, 300 MiB object store

import numpy as np
import ray

ray.init()


@ray.remote
def blocks(n):
    for i in range(n):
        yield np.full(300_000, i, dtype=np.float64)


@ray.remote
def mean(block):
    return float(block.mean())


print(ray.get([mean.remote(ref) for ref in blocks.remote(6)]))


@ray.remote(_generator_backpressure_num_objects=2)
def careful(n, log):
    for i in range(n):
        ray.get(log.add.remote(i))
        yield i


@ray.remote(num_cpus=0)
class Log:
    def __init__(self):
        self.seen = []

    def add(self, i):
        self.seen.append(i)

    def all(self):
        return self.seen


log = Log.remote()
gen = careful.remote(5, log)
ray.wait([gen], timeout=10)
print("first", ray.get(next(gen)))
print("rest", [ray.get(ref) for ref in gen], ray.get(log.all.remote()))
