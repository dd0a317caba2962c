"""Sleeping tasks over four small nodes: as they fit, spread, and pinned to one node."""
# cluster: 2 CPU; 2 CPU; 2 CPU; 2 CPU
# role: validation

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
ray.get([doze.remote(0.25) for _ in range(64)])
row("bag_64_of_250ms", start)

start = time.perf_counter()
ray.get([doze.options(scheduling_strategy="SPREAD").remote(0.25) for _ in range(64)])
row("spread_64_of_250ms", start)

start = time.perf_counter()
ray.get([doze.options(resources={"n2": 0.01}).remote(0.25) for _ in range(16)])
row("on_n2_16_of_250ms", start)
