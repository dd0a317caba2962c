"""A node dies with tasks on it: they are run again on the others."""
# cluster: 2 CPU; 2 CPU; 2 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=1, max_retries=3)
def doze(seconds):
    time.sleep(seconds)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])
ray.get([doze.options(scheduling_strategy="SPREAD").remote(0.3) for _ in range(12)])

start = time.perf_counter()
refs = [doze.options(scheduling_strategy="SPREAD").remote(1) for _ in range(18)]
time.sleep(0.5)
print("@kill-node n2", flush=True)
ray.get(refs)
row("tasks_18_of_1s", start)
