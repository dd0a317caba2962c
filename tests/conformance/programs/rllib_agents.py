"""RLlib: several agents under PPO: who acts, which module learns from whom, what is refused."""
# cluster: 4 CPU

import os
import tempfile
from pathlib import Path

os.environ["RAY_AIR_NEW_OUTPUT"] = "0"

import gymnasium as gym
import numpy as np
import ray
from ray import tune
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.multi_agent_env import MultiAgentEnv
from ray.rllib.policy.policy import PolicySpec


class Turns(MultiAgentEnv):
    """Ten steps an episode: ``fast`` acts in each, ``slow`` in every second, ``brief`` in five."""

    def __init__(self, config):
        super().__init__()
        self.agents = self.possible_agents = ["fast", "slow", "brief"]
        self.observation_spaces = {
            name: gym.spaces.Box(-1.0, 1.0, (size,), np.float32)
            for name, size in (("fast", 4), ("slow", 6), ("brief", 4))
        }
        self.action_spaces = {
            "fast": gym.spaces.Discrete(2),
            "slow": gym.spaces.Discrete(3),
            "brief": gym.spaces.Discrete(2),
        }
        self.steps = 0

    def seen(self):
        names = ["fast"]
        names += ["slow"] if self.steps % 2 == 0 else []
        names += ["brief"] if self.steps <= 5 else []
        return {name: np.zeros(self.observation_spaces[name].shape, np.float32) for name in names}

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.seen(), {}

    def step(self, actions):
        self.steps += 1
        ended = {"brief": self.steps == 5, "__all__": self.steps == 10}
        return self.seen(), dict.fromkeys(actions, 1.0), ended, {"__all__": False}, {}


MAPPING = {"fast": "quick", "slow": "calm", "brief": "quick"}


def ppo(runners, policies, mapping):
    config = PPOConfig().environment("turns").env_runners(num_env_runners=runners)
    config.multi_agent(policies=policies, policy_mapping_fn=mapping)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16]))
    return config.training(train_batch_size_per_learner=200, minibatch_size=50, num_epochs=2)


def whole(counts):
    return {name: int(count) for name, count in sorted(counts.items())}


def told(result):
    env, learners = result["env_runners"], result["learners"]
    print(result["training_iteration"], int(env["num_env_steps_sampled_lifetime"]))
    print("  ", whole(env["num_agent_steps_sampled"]), whole(env["num_module_steps_sampled"]))
    print("  ", whole(env["num_agent_steps_sampled_lifetime"]))
    for name in sorted(learners):
        learner = learners[name]
        if "num_module_steps_trained" not in learner:
            print("  ", name, learner["default_optimizer_learning_rate"])
            continue
        counts = [learner["num_module_steps_trained"], learner["num_module_steps_trained_lifetime"]]
        if name == "__all_modules__":
            counts.append(learner["num_env_steps_trained"])
        else:
            counts.append(learner["module_train_batch_size_mean"])
        print("  ", name, *(int(count) for count in counts))


ray.init()
tune.register_env("turns", lambda config: Turns(config))

for runners, policies, mapping in (
    (0, {"quick", "calm"}, lambda agent, episode, **_: MAPPING[agent]),
    (2, ["quick", "calm"], lambda agent, episode, **_: MAPPING[agent]),
    (1, {name: PolicySpec() for name in MAPPING}, lambda agent, *_, **__: agent),
):
    config = ppo(runners, policies, mapping)
    print(config.is_multi_agent, PPOConfig().is_multi_agent)
    algo = config.build_algo()
    print(algo)
    for _ in range(2):
        told(algo.train())
    algo.stop()

algo = ppo(0, {"quick", "calm"}, lambda agent, episode, **_: MAPPING[agent])
algo = algo.multi_agent(policies_to_train=["calm"]).build_algo()
told(algo.train())
algo.stop()

config = ppo(0, {"quick", "calm"}, lambda agent, episode, **_: MAPPING[agent])
config.rl_module(
    rl_module_spec=MultiRLModuleSpec(
        rl_module_specs={
            "quick": RLModuleSpec(model_config=DefaultModelConfig(fcnet_hiddens=[8])),
            "calm": RLModuleSpec(model_config=DefaultModelConfig(fcnet_hiddens=[32])),
        }
    )
)
algo = config.build_algo()
algo.train()
with tempfile.TemporaryDirectory() as folder:
    path = algo.save_to_path(folder)
    algo.stop()
    modules = Path(path) / "learner_group" / "learner" / "rl_module"
    print(sorted(m.name for m in modules.iterdir() if m.is_dir()))
    again = PPO.from_checkpoint(path)
    told(again.train())
    again.stop()

try:
    PPOConfig().multi_agent(policies="quick")
except ValueError as error:
    print(str(error).split(" OR ")[0])

grid = tune.Tuner(
    "PPO",
    param_space=ppo(1, {"quick", "calm"}, lambda agent, episode, **_: MAPPING[agent]),
    run_config=tune.RunConfig(stop={"num_env_steps_sampled_lifetime": 400}, verbose=0),
).fit()
for r in grid:
    print(r.metrics["training_iteration"], r.error, bool(r.checkpoint))
