"""Actors that exit and are restarted; calls are repeated until they answer."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)
class Phoenix:
    def no_op(self):
        return b"ok"


ray.init()
actor = Phoenix.remote()
ray.get(actor.no_op.remote())

start = time.perf_counter()
for _ in range(3):
    ray.kill(actor, no_restart=False)
    ray.get(actor.no_op.remote())
row("killed_3_times", start)

others = [Phoenix.remote() for _ in range(4)]
ray.get([other.no_op.remote() for other in others])
start = time.perf_counter()
for other in others:
    ray.kill(other, no_restart=False)
ray.get([other.no_op.remote() for other in others])
row("four_killed_at_once", start)
