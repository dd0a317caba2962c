"""Monte-Carlo estimate of pi, with an actor that is told of the progress."""

import random
import time

import ray


@ray.remote
class Progress:
    def __init__(self, total):
        self.total = total
        self.done = {}

    def report(self, task, count):
        self.done[task] = count

    def fraction(self):
        return sum(self.done.values()) / self.total


@ray.remote
def sample(task, count, progress):
    rng = random.Random(task)
    inside = 0
    for i in range(count):
        x, y = rng.uniform(-1, 1), rng.uniform(-1, 1)
        inside += x * x + y * y <= 1
        if (i + 1) % 1000 == 0:
            progress.report.remote(task, i + 1)
            time.sleep(0.1)
    return inside


if __name__ == "__main__":
    ray.init(num_cpus=4)
    tasks, each = 4, 5000
    progress = Progress.remote(tasks * each)
    print(ray.get(progress.fraction.remote()))
    results = [sample.remote(task, each, progress) for task in range(tasks)]
    fractions = []
    while not fractions or fractions[-1] < 1:
        fractions.append(ray.get(progress.fraction.remote()))
        time.sleep(0.05)
    print(fractions == sorted(fractions), len(fractions) > 3)
    print(round(4 * sum(ray.get(results)) / (tasks * each), 4))
    ray.shutdown()
