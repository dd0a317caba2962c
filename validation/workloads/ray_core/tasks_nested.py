"""Tasks that submit tasks and wait for them, giving their CPU back meanwhile."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def child(seconds):
    time.sleep(seconds)


@ray.remote
def parent(children, seconds):
    ray.get([child.remote(seconds) for _ in range(children)])


@ray.remote
def count(depth):
    return 1 if depth == 0 else 1 + ray.get(count.remote(depth - 1))


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

start = time.perf_counter()
ray.get([parent.remote(50, 0.02) for _ in range(4)])
row("parents_4_children_50", start)

start = time.perf_counter()
ray.get([parent.remote(150, 0) for _ in range(4)])
row("parents_4_no_ops_150", start)

start = time.perf_counter()
assert ray.get(count.remote(7)) == 8
row("depth_7", start)
