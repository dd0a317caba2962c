"""ray.wait: how many, how long, in what order, and what it refuses."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0.1)
def after(seconds):
    time.sleep(seconds)
    return seconds


refs = [after.remote(s) for s in (60, 0, 60, 0)]
ray.get([refs[1], refs[3]])
ready, waiting = ray.wait(refs, num_returns=2)
print([refs.index(ref) for ref in ready], [refs.index(ref) for ref in waiting])
ready, waiting = ray.wait(refs)
print(len(ready), ready[0] in (refs[1], refs[3]), len(waiting))  # either of the two that are there
ready, waiting = ray.wait(refs, num_returns=4, timeout=0.3)
print([refs.index(ref) for ref in ready], [refs.index(ref) for ref in waiting])
ready, waiting = ray.wait([refs[0]], timeout=0)
print(len(ready), len(waiting))
for ref in (refs[0], refs[2]):
    ray.cancel(ref, force=True)
ready, waiting = ray.wait(refs, num_returns=4, timeout=30)
print(len(ready), len(waiting))

puts = [ray.put(i) for i in range(4)]
ready, waiting = ray.wait(puts[::-1], num_returns=3)
print(len(ready), len(waiting), sorted(ray.get(ready + waiting)))
ready, waiting = ray.wait(puts, num_returns=4, fetch_local=False)
print(ray.get(ready), waiting)
one = puts[0]
for wrong in (
    lambda: ray.wait(one),
    lambda: ray.wait([one, one]),
    lambda: ray.wait([one], num_returns=2),
    lambda: ray.wait([one], num_returns=0),
    lambda: ray.wait([1]),
    lambda: ray.wait([one], timeout=-1),
):
    try:
        print(wrong())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0][:75])
print(ray.wait([]))
