"""One array read by a task on each of three other nodes."""
# cluster: 4 x 1 CPU, 1 GiB object store
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def size(array):
    return len(array)


ray.init()
NODES = ("n1", "n2", "n3")


def on_all(value):
    ray.get([size.options(resources={node: 0.01}).remote(value) for node in NODES])


on_all(b"")
for mebibytes in (32, 128, 256):
    ref = ray.put(np.ones(mebibytes * 2**20, dtype=np.uint8))
    start = time.perf_counter()
    on_all(ref)
    row(f"broadcast_{mebibytes}MiB", start)
    del ref
