"""A task that waits in ray.get lends its CPU; one that sleeps does not."""
# cluster: 1 CPU

import time

import ray

ray.init()


@ray.remote
def child():
    return "child ran"


@ray.remote
def waits():
    return ray.get(child.remote())


@ray.remote
def waits_with_wait():
    ready, _ = ray.wait([child.remote()])
    return ray.get(ready[0])


@ray.remote
def free_while_blocked(ref):
    before = ray.available_resources().get("CPU", 0)
    ray.get(ref[0])
    return before


@ray.remote
def sleeps():
    ref = child.remote()
    time.sleep(1)
    ready, _ = ray.wait([ref], timeout=0)
    return len(ready)


print(ray.get(waits.remote()))
print(ray.get(waits_with_wait.remote()))
print("done while its parent slept:", ray.get(sleeps.remote()))
