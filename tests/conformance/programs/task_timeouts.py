"""Waiting for a value only so long."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote
def slow(seconds):
    time.sleep(seconds)
    return seconds


ref = slow.remote(3)
for timeout in (0, 0.1):
    try:
        ray.get(ref, timeout=timeout)
    except ray.exceptions.GetTimeoutError as error:
        print(type(error).__name__, isinstance(error, TimeoutError), str(error).split(":")[0])
print(ray.get(ref, timeout=30))
print(ray.get(ref, timeout=0))
try:
    ray.get([slow.remote(0), slow.remote(60)], timeout=2)
except TimeoutError:
    print("all or nothing")
