"""Three times what the store of 400 MiB holds is put, spilled and read back."""
# cluster: 2 CPU, 400 MiB object store
# role: calibration
# compute: measured

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


ray.init()
MEBIBYTES = 16


def spill(count):
    """More than the store holds is put, then all of it is read in the same order."""
    start = time.perf_counter()
    refs = [ray.put(np.ones(MEBIBYTES * 2**20, dtype=np.uint8)) for _ in range(count)]
    row(f"put_{count}_of_16MiB", start)
    start = time.perf_counter()
    for ref in refs:
        ray.get(ref)
    row(f"restore_{count}_of_16MiB", start)


spill(75)
