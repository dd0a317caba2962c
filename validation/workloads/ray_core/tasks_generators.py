"""Streaming generators: many small items, megabyte items, and slow items read as they come."""
# cluster: 4 CPU
# role: validation
# compute: measured

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def small(n):
    for i in range(n):
        yield i + 1


@ray.remote
def large(n):
    for i in range(n):
        yield np.full(2**20, i, dtype=np.uint8)


@ray.remote
def slow(n):
    for i in range(n):
        time.sleep(0.05)
        yield i + 1


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

for name, make, n in (
    ("small_1000", small, 1000),
    ("mebibytes_150", large, 150),
    ("slow_30", slow, 30),
):
    start = time.perf_counter()
    for ref in make.remote(n):
        ray.get(ref)
    row(name, start)
