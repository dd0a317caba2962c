"""Arrays are read where they lie in the object store, hence read-only."""
# cluster: 2 CPU

import numpy as np
import ray

ray.init()
big = np.arange(200_000, dtype=np.float64)
small = np.arange(4)
ref = ray.put(big)
one, two = ray.get(ref), ray.get(ref)
print(one.flags.writeable, one.dtype, one.shape, np.shares_memory(one, two))
try:
    one[0] = 5
except ValueError as error:
    print("ValueError", error)
print(ray.get(ray.put(small)).flags.writeable)


@ray.remote
def arrives(array):
    flags = array.flags.writeable
    copy = array.copy()
    copy[0] = -1
    return flags, float(copy[0]), float(array.sum())


@ray.remote
def makes(n):
    return np.ones((n, n))


print(ray.get(arrives.remote(ref)), ray.get(arrives.remote(big)), ray.get(arrives.remote(small)))
for n in (3, 300):
    made = ray.get(makes.remote(n))
    print(made.shape, made.flags.writeable, float(made.sum()))
bundle = ray.get(ray.put({"a": big, "b": [small]}))
print(bundle["a"].flags.writeable, bundle["b"][0].flags.writeable)
text = ray.get(ray.put(np.array(["a", "bc"])))
print(text.tolist(), text.dtype)
strided = ray.get(ray.put(big.reshape(400, 500)[::2, ::5]))
print(strided.shape, float(strided[1, 1]))
objects = ray.get(ray.put(np.array([{"a": 1}, None], dtype=object)))
objects[1] = "written"
print(objects.tolist())
