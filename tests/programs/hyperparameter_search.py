"""Asynchronous hyperparameter search: ray.wait picks whatever is ready."""

import random

import ray


@ray.remote
def evaluate(config):
    best = (config["rate"] - 0.3) ** 2 + (config["depth"] - 4) ** 2 / 100
    return 1.0 - best


def configs(seed):
    rng = random.Random(seed)
    while True:
        yield {"rate": rng.uniform(0, 1), "depth": rng.randint(1, 8)}


if __name__ == "__main__":
    ray.init(num_cpus=4)
    source = configs(7)
    running = {}
    for _ in range(4):
        config = next(source)
        running[evaluate.remote(config)] = config
    results = []
    for _ in range(20):
        ready, _ = ray.wait(list(running), num_returns=1)
        config = running.pop(ready[0])
        results.append((ray.get(ready[0]), config["depth"], round(config["rate"], 3)))
        if len(results) + len(running) < 20:
            config = next(source)
            running[evaluate.remote(config)] = config
    accuracy, depth, rate = max(results)
    print(len(results), round(accuracy, 4), depth, rate)
    ray.shutdown()
