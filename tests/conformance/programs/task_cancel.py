"""Cancelling tasks that run, wait, have finished, or have children."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote
def nap(seconds):
    until = time.time() + seconds
    while time.time() < until:
        time.sleep(0.05)
    return "rested"


@ray.remote
def waits_for_child():
    return ray.get(nap.remote(60))


def outcome(ref):
    try:
        return ray.get(ref, timeout=20)
    except ray.exceptions.RayError as error:
        return type(error).__name__


quick = nap.remote(0)
print(ray.get(quick))
ray.cancel(quick)
print("finished", outcome(quick))

running = nap.remote(60)
time.sleep(2)
ray.cancel(running)
print("running", outcome(running))

long = [nap.remote(60), nap.remote(60)]
queued = nap.remote(0)
time.sleep(1)
ray.cancel(queued)
print("queued", outcome(queued))
ray.cancel(long[0], force=True)
print("forced", outcome(long[0]))
ray.cancel(long[1])
print("second", outcome(long[1]))

parent = waits_for_child.remote()
time.sleep(2)
ray.cancel(parent, recursive=True)
print("parent", outcome(parent))
print("CPUs are free again", ray.get([nap.remote(0), nap.remote(0)]))
