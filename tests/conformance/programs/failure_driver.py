"""A driver that does not catch its error ends with exit code 1."""
# cluster: 1 CPU

import ray

ray.init()


@ray.remote
def fail():
    raise RuntimeError("for the driver")


print("before")
ray.get(fail.remote())
print("never printed")
