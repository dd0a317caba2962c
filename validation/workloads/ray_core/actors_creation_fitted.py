"""Actors from nothing to their first answer, six at once."""
# cluster: 4 CPU
# role: calibration

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


create(6)
