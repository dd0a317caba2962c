"""Chains: each task takes the result of the one before."""
# cluster: 4 CPU
# role: calibration

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def step(before):
    return before + 1


@ray.remote
def slow_step(before):
    time.sleep(0.02)
    return before + 1


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])


def chain(link, length):
    ref = link.remote(0)
    for _ in range(length - 1):
        ref = link.remote(ref)
    assert ray.get(ref) == length


start = time.perf_counter()
chain(step, 300)
row("step_300", start)

start = time.perf_counter()
chain(slow_step, 40)
row("slow_step_40", start)
