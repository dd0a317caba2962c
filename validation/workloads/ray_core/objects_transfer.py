"""Arrays made on one node and read on another, one after the other."""
# cluster: 2 CPU, 2 GiB object store; 2 CPU, 2 GiB object store
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(resources={"n1": 0.01})
def there(mebibytes):
    return np.ones(mebibytes * 2**20, dtype=np.uint8)


ray.init()
ray.get(there.remote(1))


def move(count, mebibytes):
    """Made on n1, read here: only the reading is timed."""
    refs = [there.remote(mebibytes) for _ in range(count)]
    ray.wait(refs, num_returns=count, fetch_local=False)
    start = time.perf_counter()
    for ref in refs:
        ray.get(ref)
    row(f"get_{count}_of_{mebibytes}MiB", start)


move(200, 1)
move(40, 16)
move(8, 100)
move(4, 256)
