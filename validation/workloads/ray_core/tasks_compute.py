"""Tasks that compute: one alone, two, and four on however many cores the host has."""
# cluster: 4 CPU
# role: validation
# compute: measured

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def work():
    return sum(i * i for i in range(4_000_000))


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

for width, times in ((1, 4), (2, 4), (4, 2)):
    start = time.perf_counter()
    for _ in range(times):
        ray.get([work.remote() for _ in range(width)])
    row(f"width_{width}_x{times}", start)
