"""Large arguments and results, shared by many tasks."""
# cluster: 2 CPU, 300 MiB object store

import numpy as np
import ray

ray.init()


@ray.remote
def make(i, n):
    return np.full(n, i, dtype=np.uint8)


@ray.remote
def total(*arrays):
    return sum(int(array.sum()) for array in arrays)


@ray.remote
def size(blob):
    return len(blob)


data = ray.put(np.ones(5_000_000, dtype=np.uint8))
print(ray.get([total.remote(data) for _ in range(6)]))
print(ray.get(total.remote(*[make.remote(i, 1_000_000) for i in range(5)])))
for n in (1, 100 * 1024, 100 * 1024 + 1, 5_000_000):
    print(n, ray.get(size.remote(bytes(n))), len(ray.get(make.remote(0, n))))
print(ray.get(total.remote(*[np.ones(50_000, dtype=np.uint8) for _ in range(8)])))
columns = ray.get(ray.put({name: np.arange(100_000) for name in "abc"}))
print(sorted(columns), int(columns["b"][-1]))
