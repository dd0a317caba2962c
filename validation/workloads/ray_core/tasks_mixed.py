"""Tasks of one, two and four CPUs and of different lengths, submitted in one go."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def doze(seconds):
    time.sleep(seconds)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

start = time.perf_counter()
sizes = (1, 2, 1, 4)
lengths = (0.05, 0.1, 0.15)
ray.get([doze.options(num_cpus=sizes[i % 4]).remote(lengths[i % 3]) for i in range(48)])
row("mixed_48", start)

start = time.perf_counter()
ray.get([doze.remote(1.5), *[doze.remote(0.1) for _ in range(60)]])
row("one_long_60_short", start)
