"""No-op tasks: one after the other, and all at once."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def no_op():
    return b"ok"


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

start = time.perf_counter()
for _ in range(800):
    ray.get(no_op.remote())
row("one_by_one_800", start)

start = time.perf_counter()
ray.get([no_op.remote() for _ in range(4000)])
row("at_once_4000", start)
