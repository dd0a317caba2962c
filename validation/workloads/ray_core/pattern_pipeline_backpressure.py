"""Blocks of 8 MiB made, changed and summed, at most six in flight."""
# cluster: 4 CPU, 500 MiB object store
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
def load(i):
    time.sleep(0.02)
    return np.full(8 * 2**20, i % 7, dtype=np.uint8)


@ray.remote
def change(block):
    return block + 1


@ray.remote
def total(block):
    return int(block[:10].sum())


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
ray.get([total.remote(change.remote(load.remote(i))) for i in range(4)])

start = time.perf_counter()
left = []
for i in range(80):
    if len(left) == 6:
        _, left = ray.wait(left, num_returns=1)
    left.append(total.remote(change.remote(load.remote(i))))
ray.get(left)
row("blocks_80", start)
