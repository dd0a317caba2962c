"""One to many and many to one: a task's result read by all, and a task that takes all results."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def source():
    return list(range(100))


@ray.remote
def use(values, i):
    time.sleep(0.005)
    return values[0] + i


@ray.remote
def collect(*values):
    return len(values)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

for width in (100, 800):
    start = time.perf_counter()
    given = source.remote()
    assert ray.get(collect.remote(*[use.remote(given, i) for i in range(width)])) == width
    row(f"fan_out_in_{width}", start)
