"""Tasks that fail and are run again: an exception twice, and a worker that exits once."""
# cluster: 4 CPU
# role: validation

import json
import os
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=0)
class Attempts:
    def __init__(self):
        self.seen = {}

    def next(self, key):
        self.seen[key] = self.seen.get(key, 0) + 1
        return self.seen[key]


@ray.remote(max_retries=3, retry_exceptions=True)
def flaky(attempts, key):
    time.sleep(0.02)
    if ray.get(attempts.next.remote(key)) < 3:
        raise ValueError(key)


@ray.remote(max_retries=2)
def dying(attempts, key):
    if ray.get(attempts.next.remote(key)) < 2:
        os._exit(1)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
attempts = Attempts.remote()
ray.get([flaky.remote(attempts, f"warm {i}") for i in range(8)])

start = time.perf_counter()
ray.get([flaky.remote(attempts, f"flaky {i}") for i in range(60)])
row("exceptions_60", start)

start = time.perf_counter()
for i in range(3):
    ray.get(dying.remote(attempts, f"dying {i}"))
row("worker_exits_3", start)
