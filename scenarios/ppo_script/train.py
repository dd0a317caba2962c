"""PPO on an arm that is simulated step by step: 4 ms of physics, then a small image."""

import argparse
import time

import gymnasium as gym
import numpy as np
import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig


class Arm(gym.Env):
    """Seven joints, seen by a camera of 64 x 64; an episode is 200 steps."""

    def __init__(self, config):
        self.physics_s = config["physics_s"]
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros((64, 64, 3), np.uint8), {}

    def step(self, action):
        time.sleep(self.physics_s)
        self.steps += 1
        done = self.steps == 200
        return np.zeros((64, 64, 3), np.uint8), float(action.sum()), done, False, {}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--env-runners", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=5)
    args = parser.parse_args()

    ray.init()
    tune.register_env("arm", Arm)
    config = (
        PPOConfig()
        .environment("arm", env_config={"physics_s": 0.004})
        .env_runners(num_env_runners=args.env_runners, num_envs_per_env_runner=2)
        .learners(num_learners=1, num_gpus_per_learner=1)
        .training(train_batch_size_per_learner=16_384, minibatch_size=512, num_epochs=5)
        .rl_module(model_config=DefaultModelConfig(vf_share_layers=True))
    )
    algo = config.build_algo()
    for _ in range(args.iterations):
        result = algo.train()
        print(
            f"iteration {result['training_iteration']}: "
            f"{result['num_env_steps_sampled_lifetime']:,} env steps, "
            f"sampled in {result['timers']['env_runner_sampling_timer']:.2f} s, "
            f"learned in {result['timers']['learner_update_timer']:.2f} s"
        )
    algo.stop()


if __name__ == "__main__":
    main()
