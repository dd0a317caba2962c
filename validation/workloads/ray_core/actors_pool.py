"""An ActorPool of four actors: ordered and unordered results of calls of different length."""
# cluster: 4 CPU
# role: validation

import json
import time

import ray
from ray.util import ActorPool


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
class Worker:
    def work(self, seconds):
        time.sleep(seconds)
        return seconds


ray.init()
pool = ActorPool([Worker.remote() for _ in range(4)])
list(pool.map(lambda actor, s: actor.work.remote(s), [0.01] * 8))

lengths = [0.02 * (1 + i % 5) for i in range(100)]
start = time.perf_counter()
list(pool.map(lambda actor, s: actor.work.remote(s), lengths))
row("map_100", start)

start = time.perf_counter()
list(pool.map_unordered(lambda actor, s: actor.work.remote(s), lengths))
row("map_unordered_100", start)
