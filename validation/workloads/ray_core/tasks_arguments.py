"""Arguments and results: kilobytes within the message, large ones by the store, many returns."""
# cluster: 4 CPU
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def take(*values):
    return len(values)


@ray.remote(num_returns=50)
def give():
    return list(range(50))


@ray.remote
def back(values):
    return values


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

inline, mebibyte = bytes(50_000), np.zeros(2**20, dtype=np.uint8)
start = time.perf_counter()
ray.get([take.remote(inline) for _ in range(800)])
row("inline_50kB_800", start)

start = time.perf_counter()
ray.get([take.remote(mebibyte) for _ in range(300)])
row("mebibyte_300", start)

start = time.perf_counter()
for _ in range(20):
    ray.get(give.remote())
row("returns_50_x20", start)

start = time.perf_counter()
for _ in range(100):
    ray.get(back.remote(mebibyte))
row("there_and_back_100", start)
