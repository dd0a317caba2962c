"""Calls of an actor on another node: one after the other, at once, and with an array."""
# cluster: 4 CPU; 4 CPU
# role: validation

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=0)
class Server:
    def no_op(self, *arrays):
        return len(arrays)


ray.init()

server = Server.options(resources={"n1": 0.01}).remote()
ray.get([server.no_op.remote() for _ in range(20)])

start = time.perf_counter()
for _ in range(1000):
    ray.get(server.no_op.remote())
row("one_by_one_1000", start)

start = time.perf_counter()
ray.get([server.no_op.remote() for _ in range(3000)])
row("at_once_3000", start)

array = np.ones(4 * 2**20, dtype=np.uint8)
ray.get(server.no_op.remote(array))
start = time.perf_counter()
for _ in range(80):
    ray.get(server.no_op.remote(array))
row("four_mebibytes_80", start)
