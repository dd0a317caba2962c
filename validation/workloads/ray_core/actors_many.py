"""One caller of eight actors, and two callers in tasks of four actors."""
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


@ray.remote
def call(servers, n):
    ray.get([servers[i % len(servers)].no_op.remote() for i in range(n)])


ray.init()
servers = [Server.remote() for _ in range(8)]
ray.get([server.no_op.remote() for server in servers])

start = time.perf_counter()
ray.get([server.no_op.remote() for _ in range(400) for server in servers])
row("one_to_8_3200", start)

ray.get([call.remote(servers, 8) for _ in range(4)])
start = time.perf_counter()
ray.get([call.remote(servers[:4], 2000) for _ in range(2)])
row("two_to_4_4000", start)
