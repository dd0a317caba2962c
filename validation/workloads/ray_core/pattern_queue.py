"""A queue between two tasks: two producers, two consumers."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray
from ray.util.queue import Queue


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
def produce(queue, n):
    for i in range(n):
        queue.put(i)


@ray.remote
def consume(queue, n):
    for _ in range(n):
        queue.get()


ray.init()
queue = Queue(maxsize=20)
ray.get([produce.remote(queue, 4), consume.remote(queue, 4)])

start = time.perf_counter()
ray.get([work.remote(queue, 400) for work in (produce, produce, consume, consume)])
row("items_800", start)
