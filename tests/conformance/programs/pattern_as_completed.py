"""Results in the order in which they are done."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0.25)
def sleep(seconds):
    time.sleep(seconds)
    return seconds


ray.get([sleep.remote(0.5) for _ in range(6)])
delays = [2.4, 0.0, 1.6, 0.8]
pending = [sleep.remote(delay) for delay in delays]
while pending:
    (ready,), pending = ray.wait(pending)
    print(ray.get(ready), len(pending))


def race(refs):
    (first,), losers = ray.wait(refs)
    for ref in losers:
        ray.cancel(ref, force=True)
    return ray.get(first)


print("winner", race([sleep.remote(30), sleep.remote(0.1), sleep.remote(40)]))
