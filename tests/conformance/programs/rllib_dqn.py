"""RLlib: what DQN and SAC count, when they begin to learn, what is refused, where they count on."""
# cluster: 4 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import gymnasium as gym
import numpy as np
import ray
from ray import tune
from ray.rllib.algorithms.dqn import DQN, DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import get_trainable_cls


class Fixed(gym.Env):
    """Ten steps an episode."""

    def __init__(self, config):
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = box if config.get("box") else gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 10, False, {}


def small(config, runners, *, box=False, **training):
    config.environment("fixed", env_config={"box": box})
    config.env_runners(num_env_runners=runners)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16], fusionnet_hiddens=[16]))
    config.reporting(min_sample_timesteps_per_iteration=40, min_time_s_per_iteration=0)
    return config.training(
        num_steps_sampled_before_learning_starts=60, train_batch_size_per_learner=8, **training
    )


def told(result):
    env = result["env_runners"]
    counts = [
        result["training_iteration"],
        result["num_training_step_calls_per_iteration"],
        env["num_env_steps_sampled"],
        env["num_env_steps_sampled_lifetime"],
        result["fault_tolerance"]["num_healthy_workers"],
    ]
    print(*(int(count) for count in counts), "learners" in result, "replay_buffer" in result)
    if "learners" not in result:
        return
    learner, buffer = result["learners"]["default_policy"], result["replay_buffer"]
    counts = [
        learner["num_module_steps_trained"],
        learner["num_module_steps_trained_lifetime"],
        result["learners"]["__all_modules__"]["num_env_steps_trained_lifetime"],
        learner["module_train_batch_size_mean"],
        learner.get("num_target_updates", 0),
        learner.get("last_target_update_ts", 0),
        buffer["num_env_steps_added"],
        buffer["num_env_steps_added_lifetime"],
        buffer["num_env_steps_sampled"],
        buffer["num_env_steps_sampled_lifetime"],
    ]
    print("  ", *(int(count) for count in counts))


def refused(config):
    try:
        config.validate()
    except ValueError as error:
        print(str(error).split(".")[0][:100])


ray.init()
tune.register_env("fixed", lambda config: Fixed(config))

for config in (
    small(DQNConfig(), 0, target_network_update_freq=25),
    small(DQNConfig(), 2, n_step=3, target_network_update_freq=25),
    small(DQNConfig(), 1, training_intensity=24, double_q=False, dueling=False),
    small(DQNConfig(), 1, training_intensity=2, num_atoms=11),
    small(SACConfig(), 0, box=True),
    small(SACConfig(), 1, twin_q=True).env_runners(num_envs_per_env_runner=2),
):
    algo = config.build_algo()
    print(algo)
    for _ in range(3):
        told(algo.train())
    algo.stop()

algo = small(DQNConfig(), 0).build_algo()
for _ in range(2):
    algo.train()
with tempfile.TemporaryDirectory() as folder:
    path = algo.save_to_path(folder)
    algo.stop()
    again = DQN.from_checkpoint(path)
    result = again.train()
    print(result["training_iteration"], int(result["num_env_steps_sampled_lifetime"]))
    print(int(result["learners"]["default_policy"]["num_module_steps_trained"]))
    again.stop()

for config in (DQNConfig(), SACConfig()):
    config.environment("fixed")
    request = config.algo_class.default_resource_request(config)
    print(
        type(config).__name__,
        list(request.bundles),
        request.strategy,
        config.total_train_batch_size,
        config.get_rollout_fragment_length(),
    )
    print(config.lr, config.num_env_runners, config.rollout_fragment_length, config.num_learners)
    print(config.n_step, config.grad_clip, config.tau, config.target_network_update_freq)
    print(config.min_time_s_per_iteration, config.min_sample_timesteps_per_iteration)
    print(config.evaluation_config, config.num_steps_sampled_before_learning_starts)
    config.training(replay_buffer_config={"capacity": 100})
    print(sorted(config.replay_buffer_config.items()))
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer"})
    print(config.replay_buffer_config)
print(DQNConfig().training(n_step=(2, 5)).get_rollout_fragment_length())

refused(DQNConfig().env_runners(rollout_fragment_length=2).training(n_step=3))
refused(DQNConfig().training(td_error_loss_fn="l1"))
refused(DQNConfig().training(lr_schedule=[[0, 0.1]]))
refused(SACConfig().training(lr=0.1))
refused(SACConfig().training(grad_clip=0.0))
refused(SACConfig().env_runners(rollout_fragment_length=2).training(n_step=(2, 3)))
refused(SACConfig().training(replay_buffer_config={"type": "ReplayBuffer"}))
print(get_trainable_cls("DQN") is DQN, get_trainable_cls("SAC").__name__)

grid = tune.Tuner(
    "DQN",
    param_space=small(DQNConfig(), 1).training(lr=tune.grid_search([0.1, 0.2])),
    run_config=tune.RunConfig(stop={"num_env_steps_sampled_lifetime": 80}, verbose=0),
).fit()
for r in grid:
    print(r.metrics["config"]["lr"], r.metrics["training_iteration"], r.error, bool(r.checkpoint))
