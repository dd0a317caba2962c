"""Three actors in a row over two nodes: items of 1 MiB go from one to the next."""
# cluster: 2 CPU; 2 CPU
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=0)
class Stage:
    def work(self, item):
        time.sleep(0.02)
        return item


ray.init()
nodes = ("n0", "n1", "n0")
stages = [Stage.options(resources={node: 0.01}).remote() for node in nodes]


def flow(items, size):
    refs = []
    for _ in range(items):
        ref = np.zeros(size, dtype=np.uint8)
        for stage in stages:
            ref = stage.work.remote(ref)
        refs.append(ref)
    ray.get(refs)


flow(4, 2**20)
start = time.perf_counter()
flow(60, 2**20)
row("items_60_of_1MiB", start)

start = time.perf_counter()
flow(60, 1000)
row("items_60_of_1kB", start)
