"""max_pending_calls: a caller may only have so many calls waiting."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0, max_pending_calls=3)
class Slow:
    def work(self, seconds):
        time.sleep(seconds)
        return seconds


slow = Slow.remote()
ray.get(slow.work.remote(0))
refs, refused = [], 0
for _ in range(6):
    try:
        refs.append(slow.work.remote(0.5))
    except ray.exceptions.PendingCallsLimitExceeded as error:
        refused += 1
        kind, text = type(error).__name__, str(error)
print(len(refs), refused, kind)
print(text.partition(", ")[0], text.partition(") ")[2])
print(ray.get(refs))
print(ray.get(slow.work.remote(0)))
