"""Tasks that submit tasks and wait for them."""
# cluster: 4 CPU
# role: calibration

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
ray.get([parent.remote(30, 0.03) for _ in range(2)])
row("parents_2_children_30", start)

start = time.perf_counter()
assert ray.get(count.remote(4)) == 5
row("depth_4", start)
