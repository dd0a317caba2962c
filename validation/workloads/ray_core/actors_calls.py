"""Calls of one actor: one after the other, and all at once."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(num_cpus=0)
class Server:
    def no_op(self):
        return b"ok"


ray.init()

server = Server.remote()
ray.get([server.no_op.remote() for _ in range(20)])

start = time.perf_counter()
for _ in range(1500):
    ray.get(server.no_op.remote())
row("one_by_one_1500", start)

start = time.perf_counter()
ray.get([server.no_op.remote() for _ in range(5000)])
row("at_once_5000", start)
