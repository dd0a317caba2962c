"""Actors from nothing to their first answer: one by one, and many at once."""
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
ray.get(Server.remote().no_op.remote())


def create(count):
    start = time.perf_counter()
    servers = [Server.remote() for _ in range(count)]
    ray.get([server.no_op.remote() for server in servers])
    row(f"create_{count}", start)
    for server in servers:
        ray.kill(server)


start = time.perf_counter()
kept = []
for _ in range(4):
    kept.append(Server.remote())
    ray.get(kept[-1].no_op.remote())
row("one_by_one_4", start)
create(12)
