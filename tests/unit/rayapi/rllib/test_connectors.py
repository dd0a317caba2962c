"""Observations that are changed between an environment and its module."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raysim.rayapi.rllib.agents import MultiAgentEnv
from raysim.rayapi.rllib.algorithms import PPOConfig
from raysim.rayapi.rllib.connectors import FlattenObservations, connected
from raysim.rayapi.unsupported import NotEmulatedError
from tests.unit.rayapi.rllib.parts import ran

DICT = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(0, 1, (2,))})
SEEN = {"a": 2, "b": np.array([0.25, 0.5], dtype=np.float32)}


class Rooms(gym.Env):
    """What FrozenLake and Taxi have: a number of a room."""

    observation_space = gym.spaces.Discrete(500)
    action_space = gym.spaces.Discrete(6)

    def __init__(self, config: Any = None) -> None:
        del config

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 7, {}

    def step(self, action: Any) -> Any:
        return 499, 0.0, False, False, {}


class Two(MultiAgentEnv):
    """Two agents that see a dictionary each."""

    def __init__(self, config: Any = None) -> None:
        del config
        self.agents = ["x", "y"]
        self.observation_spaces = dict.fromkeys(self.agents, DICT)
        self.action_spaces = dict.fromkeys(self.agents, gym.spaces.Discrete(2))
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return {"x": SEEN}, {}

    def step(self, action_dict: Any) -> Any:
        return {"y": SEEN}, {}, {}, {}, {}


def test_a_room_becomes_a_row_of_zeros_and_a_one() -> None:
    env = connected(Rooms, lambda env, spaces, device: FlattenObservations())(None)
    assert (env.observation_space.shape, env.action_space.n) == ((500,), 6)
    first, _ = env.reset(seed=1)
    assert (first.sum(), first[7]) == (1, 1)
    assert env.step(0)[0][499] == 1


def test_of_several_agents_those_that_are_named() -> None:
    env = connected(Two, lambda env: [FlattenObservations(multi_agent=True, agent_ids=["x"])])(None)
    assert env.get_observation_space("x").shape == (5,)
    assert env.get_observation_space("y") is DICT
    assert env.reset()[0]["x"].tolist() == [0, 0, 1, 0.25, 0.5]
    assert env.step({})[0] == {"y": SEEN}
    assert env.possible_agents == ["x", "y"]


def test_ppo_takes_an_environment_of_rooms() -> None:
    """RLlib's first example: without the piece its default modules refuse it."""

    def main(**more: Any) -> float:
        config = PPOConfig().environment(Rooms).env_runners(num_env_runners=1, **more)
        config = config.training(train_batch_size_per_learner=200, num_epochs=1)
        return float(config.build_algo().train()["num_env_steps_sampled_lifetime"])

    piece = {"env_to_module_connector": lambda env, spaces, device: FlattenObservations()}
    assert ran(lambda: main(**piece)) == 200
    with pytest.raises(ValueError, match="No default encoder config"):
        ran(main)


def test_other_pieces_are_refused_by_name() -> None:
    made = connected(Rooms, lambda env: SimpleNamespace())
    with pytest.raises(NotEmulatedError, match="env-to-module connector SimpleNamespace"):
        made(None)
    with pytest.raises(NotEmulatedError, match="as_learner_connector"):
        FlattenObservations(as_learner_connector=True)
