"""An actor that hears how far the tasks are."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Progress:
    def __init__(self):
        self.done = {}

    def report(self, task, count):
        self.done[task] = count

    def fraction(self, total):
        return sum(self.done.values()) / total


@ray.remote
def sample(task, n, progress):
    inside = 0
    for i in range(n):
        x, y = (i * 7919 % 1000) / 1000, (i * 104729 % 1009) / 1009
        inside += x * x + y * y <= 1
        if (i + 1) % 100 == 0:
            progress.report.remote(task, i + 1)
    return inside


progress = Progress.remote()
refs = [sample.remote(i, 500, progress) for i in range(4)]
seen = [0.0]
while seen[-1] < 1:
    now = ray.get(progress.fraction.remote(2000))
    if now != seen[-1]:
        seen.append(now)
    time.sleep(0.05)
print(seen == sorted(seen), seen[-1], ray.get(refs))
