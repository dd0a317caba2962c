"""An object dies with the process that owns it."""
# cluster: 2 CPU

import time

import numpy as np
import ray

ray.init()


@ray.remote(num_cpus=0)
class Owner:
    def put(self, n):
        self.ref = ray.put(np.zeros(n))
        return [self.ref]

    def submit(self):
        return [slow.remote()]


@ray.remote
def slow():
    time.sleep(60)


@ray.remote
def read(box):
    return len(ray.get(box[0]))


def outcome(ref):
    try:
        return len(ray.get(ref, timeout=30))
    except ray.exceptions.RayError as error:
        return type(error).__name__


owner = Owner.remote()
(large,) = ray.get(owner.put.remote(100_000))
(small,) = ray.get(owner.put.remote(1))
(pending,) = ray.get(owner.submit.remote())
print(outcome(large), outcome(small))
ray.kill(owner)
time.sleep(2)
print("large", outcome(large))
print("pending", outcome(pending))
print("in a task", outcome(read.remote([large])))
print(issubclass(ray.exceptions.OwnerDiedError, ray.exceptions.ObjectLostError))
