"""A chain of large results is made again from its beginning after a node died."""
# cluster: head 1 CPU; 2 x 1 CPU, {"side": 1}

import time

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()
ids = {n["NodeName"]: n["NodeID"] for n in ray.nodes()}
at_n1 = NodeAffinitySchedulingStrategy(ids["n1"], soft=True)


@ray.remote(num_cpus=0, resources={"n0": 0.1})
class Runs:
    def __init__(self):
        self.count = {}

    def add(self, what):
        self.count[what] = self.count.get(what, 0) + 1

    def all(self):
        return sorted(self.count.items())


@ray.remote(resources={"side": 0.1}, scheduling_strategy=at_n1)
def source(runs, i):
    ray.get(runs.add.remote(f"source {i}"))
    return np.full(100_000, i)


@ray.remote(resources={"side": 0.1}, scheduling_strategy=at_n1)
def add(runs, left, right):
    ray.get(runs.add.remote("add"))
    return left + right


runs = Runs.remote()
total = add.remote(runs, source.remote(runs, 1), source.remote(runs, 2))
kept = source.remote(runs, 3)
ray.wait([total, kept], num_returns=2, fetch_local=False)
print(ray.get(runs.all.remote()))
print("@kill-node n1")
while sum(n["Alive"] for n in ray.nodes()) > 2:
    time.sleep(0.1)
print(int(ray.get(total)[0]))
print(ray.get(runs.all.remote()))
