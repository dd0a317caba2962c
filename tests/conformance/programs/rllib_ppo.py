"""RLlib: what PPO counts, what a trial asks for, what is refused, and where it counts on."""
# cluster: 4 CPU

import os
import tempfile

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import gymnasium as gym
import numpy as np
import ray
from ray import tune
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import get_trainable_cls


class Fixed(gym.Env):
    """Fifty steps an episode."""

    def __init__(self, config):
        self.config = config
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(4, np.float32), 1.0, self.steps == 50, False, {}


def ppo(runners):
    config = PPOConfig().environment("fixed", env_config={"a": 1})
    config.env_runners(num_env_runners=runners)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    return config.training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=2)


def told(result):
    env, learner = result["env_runners"], result["learners"]["default_policy"]
    counts = (
        result["training_iteration"],
        env["num_env_steps_sampled"],
        env["num_env_steps_sampled_lifetime"],
        result["num_env_steps_sampled_lifetime"],
        learner["num_module_steps_trained"],
        learner["module_train_batch_size_mean"],
        result["num_training_step_calls_per_iteration"],
        result["fault_tolerance"]["num_healthy_workers"],
    )
    print(*(int(count) for count in counts))


def refused(config):
    try:
        config.validate()
    except ValueError as error:
        print(str(error).split(".")[0][:100])


ray.init()
tune.register_env("fixed", lambda config: Fixed(config))

for runners in (0, 2):
    algo = ppo(runners).build_algo()
    print(algo)
    for _ in range(2):
        told(algo.train())
    with tempfile.TemporaryDirectory() as folder:
        path = algo.save_to_path(folder)
        algo.stop()
        again = PPO.from_checkpoint(path)
        told(again.train())
        again.stop()

for config in (PPOConfig(), IMPALAConfig(), APPOConfig()):
    config.environment("fixed")
    request = config.algo_class.default_resource_request(config)
    print(
        type(config).__name__,
        list(request.bundles),
        request.strategy,
        config.total_train_batch_size,
    )
    print(config.lr, config.num_env_runners, config.rollout_fragment_length, config.num_learners)
wide = PPOConfig().environment("fixed").env_runners(num_env_runners=4, num_envs_per_env_runner=3)
wide.training(train_batch_size_per_learner=2500)
print([wide.get_rollout_fragment_length(i) for i in range(1, 5)])

refused(PPOConfig().training(minibatch_size=5000))
refused(PPOConfig().env_runners(rollout_fragment_length=1500))
refused(IMPALAConfig().training(minibatch_size=70))
refused(PPOConfig().evaluation(evaluation_duration=0))
print(get_trainable_cls("PPO") is PPO)

evaluated = ppo(1).evaluation(
    evaluation_interval=2, evaluation_num_env_runners=1, evaluation_duration=4
)
algo = evaluated.build_algo()
print("evaluation" in algo.train())
found = algo.train()["evaluation"]["env_runners"]
print(int(found["num_episodes"]), int(found["num_env_steps_sampled"]))
algo.stop()

grid = tune.Tuner(
    "PPO",
    param_space=ppo(1).training(lr=tune.grid_search([0.1, 0.2])),
    run_config=tune.RunConfig(stop={"num_env_steps_sampled_lifetime": 800}, verbose=0),
).fit()
for r in grid:
    print(r.metrics["config"]["lr"], r.metrics["training_iteration"], r.error, bool(r.checkpoint))
