"""Small values put, and read."""
# cluster: 2 CPU
# role: calibration

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


ray.init()
ray.get(ray.put(0))

start = time.perf_counter()
for i in range(1000):
    ray.put(i)
row("put_1000", start)

ref = ray.put(1)
start = time.perf_counter()
for _ in range(2000):
    ray.get(ref)
row("get_2000", start)
