"""A worker that dies under a task: the task runs again max_retries times."""
# cluster: 2 CPU

import os

import ray

ray.init()


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1
        return self.n


@ray.remote(max_retries=2)
def crash_until(counter, n):
    attempt = ray.get(counter.up.remote())
    if attempt < n:
        os._exit(1)
    return attempt


print("third time", ray.get(crash_until.remote(Counter.remote(), 3)))
counter = Counter.remote()
try:
    ray.get(crash_until.remote(counter, 100))
except ray.exceptions.WorkerCrashedError as error:
    print(type(error).__name__, str(error).split(".")[0])
print("attempts", ray.get(counter.up.remote()) - 1)
counter = Counter.remote()
try:
    ray.get(crash_until.options(max_retries=0).remote(counter, 100))
except ray.exceptions.RayError as error:
    print(type(error).__name__, isinstance(error, ray.exceptions.RayTaskError))
print("attempts", ray.get(counter.up.remote()) - 1)
