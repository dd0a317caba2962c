"""max_concurrency of ordinary actors: calls overlap in threads."""
# cluster: 2 CPU

import time

import ray

ray.init()


@ray.remote(max_concurrency=3)
class Waiter:
    def __init__(self):
        self.go = False
        self.inside = 0

    def wait(self):
        self.inside += 1
        while not self.go:
            time.sleep(0.02)
        return "went"

    def release(self, n):
        while self.inside < n:
            time.sleep(0.02)
        self.go = True
        return self.inside


waiter = Waiter.remote()
refs = [waiter.wait.remote(), waiter.wait.remote()]
print(ray.get(waiter.release.remote(2)), ray.get(refs))

alone = Waiter.options(max_concurrency=1).remote()
stuck = alone.wait.remote()
released = alone.release.remote(1)
ready, waiting = ray.wait([stuck, released], num_returns=2, timeout=1.5)
print(len(ready), len(waiting))
