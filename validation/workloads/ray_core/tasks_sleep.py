"""Bags of sleeping tasks on four CPUs: many short ones, few long ones."""
# cluster: 4 CPU
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
ray.get([doze.remote(0.01) for _ in range(600)])
row("bag_600_of_10ms", start)

start = time.perf_counter()
ray.get([doze.remote(0.1) for _ in range(80)])
row("bag_80_of_100ms", start)

start = time.perf_counter()
ray.get([doze.remote(0.5) for _ in range(14)])
row("bag_14_of_500ms", start)
