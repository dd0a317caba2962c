"""More sleeping tasks than the CPUs of two nodes; whole CPUs, halves, pairs."""
# cluster: 4 CPU; 4 CPU
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
ray.get([doze.remote(0.2) for _ in range(96)])
row("bag_96_of_200ms", start)

start = time.perf_counter()
ray.get([doze.options(num_cpus=0.5).remote(0.2) for _ in range(96)])
row("halves_96_of_200ms", start)

start = time.perf_counter()
ray.get([doze.options(num_cpus=2).remote(0.2) for _ in range(24)])
row("pairs_24_of_200ms", start)
