"""A parameter server: workers ask for weights and send gradients."""
# cluster: 2 CPU

import numpy as np
import ray

ray.init()


@ray.remote(num_cpus=0)
class Server:
    def __init__(self, size, rate):
        self.weights, self.rate, self.steps = np.zeros(size), rate, 0

    def apply(self, *gradients):
        self.weights -= self.rate * np.mean(gradients, axis=0)
        self.steps += 1
        return self.weights

    def state(self):
        return self.steps, self.weights


@ray.remote(num_cpus=0)
class Worker:
    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.x = rng.normal(size=(64, 3))
        self.y = self.x @ np.array([1.0, -2.0, 3.0])

    def gradient(self, weights):
        return 2 * self.x.T @ (self.x @ weights - self.y) / len(self.y)


server = Server.remote(3, 0.1)
workers = [Worker.remote(i) for i in range(3)]
weights = np.zeros(3)
for _ in range(40):
    weights = server.apply.remote(*[worker.gradient.remote(weights) for worker in workers])
print(ray.get(weights).round(2).tolist(), ray.get(server.state.remote())[0])

alone = Server.remote(3, 0.05)
current = ray.get(alone.state.remote())[1]
gradients = {worker.gradient.remote(current): worker for worker in workers}
for _ in range(30):
    (ready,), _ = ray.wait(list(gradients))
    worker = gradients.pop(ready)
    gradients[worker.gradient.remote(alone.apply.remote(ready))] = worker
print(ray.get(alone.state.remote())[0], len(gradients))
