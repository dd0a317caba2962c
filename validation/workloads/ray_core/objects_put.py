"""Arrays put into the store one after the other, each forgotten at once."""
# cluster: 2 CPU, 2 GiB object store
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


ray.init()


def put_get(count, mebibytes):
    value = np.ones(mebibytes * 2**20, dtype=np.uint8)
    ray.put(value)
    start = time.perf_counter()
    for _ in range(count):
        ray.put(value)
    row(f"put_{count}_of_{mebibytes}MiB", start)


put_get(800, 1)
put_get(150, 16)
put_get(20, 200)
