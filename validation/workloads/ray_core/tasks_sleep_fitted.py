"""Bags of sleeping tasks on four CPUs."""
# cluster: 4 CPU
# role: calibration

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def doze(seconds):
    time.sleep(seconds)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

start = time.perf_counter()
ray.get([doze.remote(0.02) for _ in range(300)])
row("bag_300_of_20ms", start)

start = time.perf_counter()
ray.get([doze.remote(0.25) for _ in range(24)])
row("bag_24_of_250ms", start)
