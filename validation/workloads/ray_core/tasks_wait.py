"""Loops of ray.wait: one result at a time, and tens with a new task for each that is done."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def no_op(seconds=0):
    time.sleep(seconds)


@ray.remote
def warm():
    """As many at once as there are CPUs: afterwards every CPU has its worker process."""
    time.sleep(1)


ray.init()
ray.get([warm.remote() for _ in range(int(ray.cluster_resources()["CPU"]))])

start = time.perf_counter()
left = [no_op.remote() for _ in range(1000)]
while left:
    _, left = ray.wait(left, num_returns=1)
row("one_at_a_time_1000", start)

start = time.perf_counter()
left, submitted = [], 0
while submitted < 300 or left:
    while submitted < 300 and len(left) < 8:
        left.append(no_op.remote(0.02))
        submitted += 1
    _, left = ray.wait(left, num_returns=1)
row("eight_in_flight_300_of_20ms", start)
