"""RLlib: PPO without a runner, with eight environments, with a small module; IMPALA."""
# cluster: 4 CPU
# role: calibration
# repeat: 2

import json
import time

import ray
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig


def row(name, value, unit="s"):
    print(json.dumps({"row": name, "value": value, "unit": unit}), flush=True)


def ppo(runners, envs=1, hiddens=(256, 256), **training):
    module = {"fcnet_hiddens": list(hiddens), "vf_share_layers": False}
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config=module)
    config.env_runners(num_env_runners=runners, num_envs_per_env_runner=envs)
    return config.training(**training)


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
start = time.perf_counter()
algo = ppo(0, num_epochs=6).build_algo()
row("build_without_runners", time.perf_counter() - start)
row("iteration_without_runners", iterations(algo))

start = time.perf_counter()
algo = ppo(1, 8, num_epochs=10).build_algo()
row("build_1_runner", time.perf_counter() - start)
row("iteration_8_environments", iterations(algo))

algo = ppo(1, 1, (64, 64), minibatch_size=500, num_epochs=10).build_algo()
row("iteration_small_module", iterations(algo))

config = IMPALAConfig().environment("CartPole-v1").reporting(min_time_s_per_iteration=3)
config.env_runners(num_env_runners=1, num_envs_per_env_runner=4)
algo = config.training(train_batch_size_per_learner=1000).build_algo()
algo.train()
steps = [algo.train()["env_runners"]["num_env_steps_sampled"] for _ in range(2)]
algo.stop()
row("impala_4_environments_1000_steps", 3_000 / max(map(float, steps)))
