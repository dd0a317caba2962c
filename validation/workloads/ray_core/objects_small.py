"""Small values put, read and forgotten; lists of references read in one call."""
# cluster: 2 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


ray.init()
ray.get(ray.put(0))

start = time.perf_counter()
for i in range(2500):
    ray.put(i)
row("put_2500", start)

ref = ray.put(1)
start = time.perf_counter()
for _ in range(5000):
    ray.get(ref)
row("get_5000", start)

refs = [ray.put(i) for i in range(1500)]
start = time.perf_counter()
for _ in range(5):
    ray.get(refs)
row("get_1500_in_a_call_x5", start)
