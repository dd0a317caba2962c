"""A search: waves of tasks whose best result starts the next wave, and a progress actor."""
# cluster: 4 CPU; 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=0)
class Progress:
    def __init__(self):
        self.done = 0

    def report(self):
        self.done += 1
        return self.done


@ray.remote
def trial(start_at, i, progress):
    time.sleep(0.03 + 0.01 * (i % 4))
    progress.report.remote()
    return start_at + i


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
progress = Progress.remote()
ray.get([trial.remote(0, i, progress) for i in range(16)])

start = time.perf_counter()
best = 0
for _ in range(12):
    best = max(ray.get([trial.remote(best, i, progress) for i in range(24)]))
row("waves_12_of_24", start)
