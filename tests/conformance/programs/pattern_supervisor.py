"""Actors that make and watch actors."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, number):
        self.number = number

    def work(self, x):
        if x == "die":
            ray.actor.exit_actor()
        return self.number, x


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, n):
        self.workers = [Worker.remote(i) for i in range(n)]
        self.replaced = 0

    def run(self, items):
        out = []
        for i, item in enumerate(items):
            at = i % len(self.workers)
            try:
                out.append(ray.get(self.workers[at].work.remote(item)))
            except ray.exceptions.RayActorError:
                self.replaced += 1
                self.workers[at] = Worker.remote(at + 10)
                out.append(None)
        return out, self.replaced

    def worker(self, i):
        return self.workers[i]


boss = Supervisor.remote(2)
print(ray.get(boss.run.remote(["a", "b", "die", "c", "d"])))
print(ray.get(ray.get(boss.worker.remote(0)).work.remote("direct")))
child = ray.get(boss.worker.remote(1))
ray.kill(boss)
time.sleep(2)
try:
    print(ray.get(child.work.remote("orphan"), timeout=10))
except ray.exceptions.RayActorError as error:
    print("orphan", type(error).__name__)
