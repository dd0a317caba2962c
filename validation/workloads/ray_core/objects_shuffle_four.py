"""Shuffles over four nodes."""
# cluster: 4 x 1 CPU, 500 MiB object store
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
def split(reducers, kib):
    return [np.ones(kib * 1024, dtype=np.uint8) for _ in range(reducers)]


@ray.remote
def merge(*parts):
    return sum(len(part) for part in parts)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])


def shuffle(mappers, reducers, kib, name=None):
    start = time.perf_counter()
    maps = [split.options(num_returns=reducers).remote(reducers, kib) for _ in range(mappers)]
    sizes = ray.get([merge.remote(*[parts[r] for parts in maps]) for r in range(reducers)])
    assert sum(sizes) == mappers * reducers * kib * 1024
    if name:
        row(name, start)


shuffle(8, 8, 1)
shuffle(8, 8, 2048, "8x8_of_2MiB")
shuffle(16, 4, 1024, "16x4_of_1MiB")
