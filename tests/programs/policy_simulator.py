"""A policy is updated from rollouts of simulators: tasks and actors chained by references."""

import ray


@ray.remote
def create_policy():
    return {"weight": 0.0, "version": 0}


@ray.remote
class Simulator:
    def __init__(self, seed):
        self.seed = seed
        self.steps = 0

    def rollout(self, policy, length):
        self.steps += length
        return [policy["weight"] + self.seed + step for step in range(length)]

    def total(self):
        return self.steps


@ray.remote
def update_policy(policy, *rollouts):
    gain = sum(sum(rollout) for rollout in rollouts) / 100
    return {"weight": policy["weight"] + gain, "version": policy["version"] + 1}


@ray.remote
def train_policy(iterations, simulators):
    policy = create_policy.remote()
    for _ in range(iterations):
        rollouts = [s.rollout.remote(policy, 5) for s in simulators]
        policy = update_policy.remote(policy, *rollouts)
    return ray.get(policy)


if __name__ == "__main__":
    ray.init(num_cpus=4)
    simulators = [Simulator.remote(seed) for seed in range(3)]
    policy = ray.get(train_policy.remote(4, simulators))
    print(policy["version"], round(policy["weight"], 6))
    print(ray.get([s.total.remote() for s in simulators]))
    ray.shutdown()
