"""Arrays of another node asked for in one call, and as arguments of tasks here."""
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


@ray.remote(resources={"n0": 0.01})
def size(array):
    return len(array)


def made(count, mebibytes):
    refs = [there.remote(mebibytes) for _ in range(count)]
    ray.wait(refs, num_returns=count, fetch_local=False)
    return refs


ray.get(size.remote(b""))
refs = made(100, 4)
start = time.perf_counter()
ray.get(refs)
row("get_100_of_4MiB_in_a_call", start)

refs = made(100, 4)
start = time.perf_counter()
ray.get([size.remote(ref) for ref in refs])
row("arguments_100_of_4MiB", start)
