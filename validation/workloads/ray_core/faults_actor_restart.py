"""Actors that are killed and restarted, until they answer from a new process."""
# cluster: 4 CPU
# role: validation

import json
import os
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=0)
class Phoenix:
    def pid(self):
        return os.getpid()


def restart(actors):
    """Kill them all at once; wait until each answers from another process."""
    before = ray.get([actor.pid.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor, no_restart=False)
    for actor, pid in zip(actors, before, strict=True):
        while ray.get(actor.pid.remote()) == pid:
            time.sleep(0.01)


ray.init()
actor = Phoenix.remote()
others = [Phoenix.remote() for _ in range(4)]
ray.get([each.pid.remote() for each in (actor, *others)])

start = time.perf_counter()
for _ in range(3):
    restart([actor])
row("three_times", start)

start = time.perf_counter()
restart(others)
row("four_at_once", start)
