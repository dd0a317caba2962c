"""Finding an actor by its name, and asking whether it is there."""
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

server = Server.options(name="server").remote()
ray.get(server.no_op.remote())

start = time.perf_counter()
for _ in range(1000):
    ray.get_actor("server")
row("get_actor_1000", start)

start = time.perf_counter()
for _ in range(400):
    ray.get(ray.get_actor("server").no_op.remote())
row("get_actor_and_call_400", start)
