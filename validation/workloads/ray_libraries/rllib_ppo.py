"""RLlib: iterations of PPO by runners, modules, environments and learners; IMPALA's rate."""
# cluster: 4 CPU
# role: validation
# repeat: 2

import json
import time

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig


class Sleepy(gym.Env):
    """A millisecond a step, a hundred steps an episode."""

    def __init__(self, config=None):
        self.config = config
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        time.sleep(0.001)
        self.steps += 1
        return np.zeros(4, np.float32), float(action), self.steps == 100, False, {}


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


def ppo(runners, envs=1, hiddens=(256, 256), env="CartPole-v1", learners=0, **training):
    module = {"fcnet_hiddens": list(hiddens), "vf_share_layers": False}
    config = PPOConfig().environment(env).rl_module(model_config=module)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=envs)
    return config.learners(num_learners=learners).training(**training).build_algo()


def iterations(algo):
    """The first is not counted: torch loads what it needs."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        algo.train()
        seconds.append(time.perf_counter() - start)
    algo.stop()
    return min(seconds[1:])


ray.init()
row("iteration_1_runner", iterations(ppo(1, num_epochs=10)))
start = time.perf_counter()
algo = ppo(2, num_epochs=5)
row("build_2_runners", time.perf_counter() - start)
row("iteration_2_runners", iterations(algo))
row("iteration_1024_wide", iterations(ppo(1, 1, (1024, 1024), num_epochs=1)))
row("iteration_pendulum", iterations(ppo(2, 4, env="Pendulum-v1", num_epochs=6)))
row(
    "iteration_sleepy",
    iterations(ppo(1, env=Sleepy, train_batch_size_per_learner=2000, num_epochs=5)),
)
row("iteration_1_learner", iterations(ppo(1, learners=1, num_epochs=5)))

config = IMPALAConfig().environment("CartPole-v1").reporting(min_time_s_per_iteration=3)
algo = config.env_runners(num_env_runners=1).build_algo()
algo.train()
steps = [algo.train()["env_runners"]["num_env_steps_sampled"] for _ in range(2)]
algo.stop()
row("impala_1_runner_1000_steps", 3_000 / max(map(float, steps)))
