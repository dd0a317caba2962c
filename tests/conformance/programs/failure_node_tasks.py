"""A node dies: its tasks run elsewhere, its objects are made again, those of put are lost."""
# cluster: head 1 CPU; 2 x 1 CPU, {"side": 1}

import time

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init()
ids = {n["NodeName"]: n["NodeID"] for n in ray.nodes()}
names = {node_id: name for name, node_id in ids.items()}


@ray.remote(num_cpus=0)
class Runs:
    def __init__(self):
        self.log = []

    def add(self, what):
        self.log.append(what)

    def all(self):
        return self.log


@ray.remote(resources={"side": 0.1})
def make(runs, n):
    ray.get(runs.add.remote(names[ray.get_runtime_context().get_node_id()]))
    return np.ones(n)


@ray.remote
def put(n):
    return [ray.put(np.ones(n))]


runs = Runs.options(scheduling_strategy=NodeAffinitySchedulingStrategy(ids["n0"], False)).remote()
at_n1 = NodeAffinitySchedulingStrategy(ids["n1"], soft=True)
large = make.options(scheduling_strategy=at_n1).remote(runs, 100_000)
fixed = make.options(scheduling_strategy=at_n1, max_retries=0).remote(runs, 100_000)
small = make.options(scheduling_strategy=at_n1).remote(runs, 1)
(borrowed,) = ray.get(put.options(scheduling_strategy=at_n1).remote(100_000))
ray.wait([large, fixed, small], num_returns=3, fetch_local=False)
print(ray.get(runs.all.remote()))
print("@kill-node n1")
while sum(n["Alive"] for n in ray.nodes()) > 2:
    time.sleep(0.1)


def outcome(ref):
    try:
        return float(ray.get(ref, timeout=60).sum())
    except ray.exceptions.RayError as error:
        return type(error).__name__


print("small", outcome(small))
print("large", outcome(large))
print("no retries", outcome(fixed))
print("borrowed", outcome(borrowed))
print(ray.get(runs.all.remote()))
print(sorted((n["NodeName"], n["Alive"]) for n in ray.nodes()))
