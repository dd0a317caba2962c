"""A parameter server: two workers fetch 8 MiB of weights and push as much, alone and together."""
# cluster: 4 CPU
# role: validation
# compute: measured

import json
import time

import numpy as np
import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
class Server:
    def __init__(self):
        self.weights = np.zeros(2 * 2**20, dtype=np.float32)

    def pull(self):
        return self.weights

    def push(self, gradient):
        self.weights = self.weights + gradient
        return len(self.weights)


@ray.remote
class Worker:
    def __init__(self, server):
        self.server = server

    def train(self, steps):
        for _ in range(steps):
            weights = ray.get(self.server.pull.remote())
            time.sleep(0.02)
            ray.get(self.server.push.remote(np.ones_like(weights)))


ray.init()
server = Server.remote()
workers = [Worker.remote(server) for _ in range(2)]
ray.get([worker.train.remote(2) for worker in workers])

start = time.perf_counter()
ray.get(workers[0].train.remote(25))
row("one_worker_25", start)

start = time.perf_counter()
ray.get([worker.train.remote(25) for worker in workers])
row("two_workers_25", start)
