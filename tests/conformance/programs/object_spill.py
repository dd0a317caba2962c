"""More live data than the object store holds: it is spilled and comes back."""
# cluster: 2 CPU, 100 MiB object store

import numpy as np
import ray

ray.init()
refs = [ray.put(np.full(2_500_000, i, dtype=np.float64)) for i in range(8)]
print([float(ray.get(ref)[-1]) for ref in refs])


@ray.remote
def check(array, i):
    return bool((array == i).all())


@ray.remote
def grow(i):
    return np.full(2_500_000, i, dtype=np.float64)


print(ray.get([check.remote(ref, i) for i, ref in enumerate(refs)]))
made = [grow.remote(i) for i in range(6)]
print(ray.get([check.remote(ref, i) for i, ref in enumerate(made)]))
del refs, made
print(float(ray.get(grow.remote(9))[0]))
