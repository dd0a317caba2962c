"""A node dies with objects on it: they are made again when they are asked for."""
# cluster: 2 CPU; 2 CPU; 2 CPU
# role: validation

import json
import time

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=1, max_retries=3)
def make(i):
    time.sleep(0.3)
    return np.full(4 * 2**20, i, dtype=np.uint8)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
(there,) = [node["NodeID"] for node in ray.nodes() if node["NodeName"] == "n1"]
on_n1 = make.options(scheduling_strategy=NodeAffinitySchedulingStrategy(there, soft=True))
refs = [on_n1.remote(i) for i in range(8)]
ray.wait(refs, num_returns=8, fetch_local=False)
print("@kill-node n1", flush=True)
start = time.perf_counter()
while sum(node["Alive"] for node in ray.nodes()) > 2:
    time.sleep(0.02)
row("death_is_noticed", start)

start = time.perf_counter()
assert [int(ray.get(ref)[0]) for ref in refs] == list(range(8))
row("objects_8_made_again", start)
