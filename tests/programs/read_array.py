"""Arrays made by tasks and added by tasks; large ones live in the object store."""

import numpy as np
import ray


@ray.remote
def read_array(size):
    return np.arange(size, dtype=np.float64)


@ray.remote
def add(a, b):
    return np.add(a, b)


@ray.remote
def writeable(a):
    return a.flags.writeable


if __name__ == "__main__":
    ray.init(num_cpus=4)
    small = add.remote(read_array.remote(10), read_array.remote(10))
    print(ray.get(small))
    large = add.remote(read_array.remote(1_000_000), read_array.remote(1_000_000))
    array = ray.get(large)
    print(array.shape, array.dtype, array.sum(), array.flags.writeable)
    print(ray.get(writeable.remote(np.ones(100_000))))
    kept = ray.put(np.ones((1000, 1000)))
    print([ray.get(add.remote(kept, i))[0, 0] for i in range(3)])
    try:
        array[0] = 1
    except ValueError as error:
        print(type(error).__name__)
    ray.shutdown()
