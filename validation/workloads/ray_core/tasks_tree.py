"""Sums by a binary tree of tasks."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def leaf(i):
    time.sleep(0.005)
    return i


@ray.remote
def add(a, b):
    return a + b


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])


def reduce_tree(leaves):
    level = [leaf.remote(i) for i in range(leaves)]
    while len(level) > 1:
        level = [add.remote(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    assert ray.get(level[0]) == leaves * (leaves - 1) // 2


for leaves in (64, 512):
    start = time.perf_counter()
    reduce_tree(leaves)
    row(f"tree_{leaves}", start)
