"""A parameter server, with workers in step and out of step."""

import numpy as np
import ray

DIM = 1000
TARGET = np.linspace(0, 1, DIM)


@ray.remote
class ParameterServer:
    def __init__(self, rate):
        self.rate = rate
        self.weights = np.zeros(DIM)

    def apply_gradients(self, *gradients):
        self.weights = self.weights - self.rate * np.mean(gradients, axis=0)
        return self.weights

    def get_weights(self):
        return self.weights


@ray.remote
class DataWorker:
    def compute_gradients(self, weights):
        return weights - TARGET


def loss(weights):
    return float(np.square(weights - TARGET).mean())


def synchronous(iterations):
    server = ParameterServer.remote(0.5)
    workers = [DataWorker.remote() for _ in range(3)]
    weights = server.get_weights.remote()
    for _ in range(iterations):
        gradients = [w.compute_gradients.remote(weights) for w in workers]
        weights = server.apply_gradients.remote(*gradients)
    return loss(ray.get(weights))


def asynchronous(updates):
    server = ParameterServer.remote(0.2)
    workers = [DataWorker.remote() for _ in range(3)]
    weights = server.get_weights.remote()
    gradients = {w.compute_gradients.remote(weights): w for w in workers}
    for _ in range(updates):
        ready, _ = ray.wait(list(gradients))
        worker = gradients.pop(ready[0])
        weights = server.apply_gradients.remote(ready[0])
        gradients[worker.compute_gradients.remote(weights)] = worker
    return loss(ray.get(server.get_weights.remote()))


if __name__ == "__main__":
    ray.init(num_cpus=4)
    print(f"{loss(np.zeros(DIM)):.6f}")
    print(f"{synchronous(10):.3e}")
    final = asynchronous(60)
    print(final < 0.1)  # how stale a gradient gets is the scheduler's affair
    ray.shutdown()
