"""multiprocessing.Pool over Ray: map with chunks, and imap."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray
from ray.util.multiprocessing import Pool


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def work(i):
    time.sleep(0.01)
    return i


ray.init()
with Pool(4) as pool:
    pool.map(work, range(8))
    start = time.perf_counter()
    pool.map(work, range(400))
    row("map_400_of_10ms", start)
    start = time.perf_counter()
    list(pool.imap(work, range(200), chunksize=5))
    row("imap_200_of_10ms", start)
