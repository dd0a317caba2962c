"""Observations that are changed between an environment and its module, by RLlib's own pieces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raysim.rayapi.rllib.agents import MultiAgentEnv
from raysim.rayapi.rllib.algorithms import PPOConfig
from raysim.rayapi.rllib.episodes import class_of_installed
from tests.unit.rayapi.rllib.parts import Slow, ran

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
        return dict.fromkeys(self.agents, SEEN), {}

    def step(self, action_dict: Any) -> Any:
        ends = {"__all__": False}
        return dict.fromkeys(self.agents, SEEN), dict.fromkeys(self.agents, 1.0), ends, ends, {}


def piece(name: str, **said: Any) -> Any:
    """What a program names in ``env_to_module_connector``, as a function."""
    return lambda env, spaces, device: class_of_installed(f"connectors.{name}")(**said)


def config_of(env: Any, **said: Any) -> Any:
    """An iteration of 200 env steps by the driver."""
    config = PPOConfig().environment(env).env_runners(num_env_runners=0, **said)
    return config.training(train_batch_size_per_learner=200, num_epochs=1)


def test_rooms_become_a_row_that_the_module_takes() -> None:
    """RLlib's first example: without the piece its default modules refuse it."""

    def main(**more: Any) -> tuple[float, dict[str, int]]:
        algo = config_of(Rooms, **more).build_algo()
        return algo.train()["num_env_steps_sampled_lifetime"], algo.weights_bytes

    steps, weights = ran(
        lambda: main(env_to_module_connector=piece("env_to_module:FlattenObservations"))
    )
    assert steps == 200
    assert weights == {"default_policy": 4 * (501 * 256 + 257 * 256 + 257 * 6)}
    with pytest.raises(ValueError, match="No default encoder config"):
        ran(main)


def test_stacked_frames_are_as_many_channels() -> None:
    """Of RLlib's, four images of 64 x 64 x 1 in one: 4 in-channels of the first convolution."""

    def main(**more: Any) -> int:
        config = config_of(Slow, **more).environment(env_config={"shape": (64, 64, 1)})
        return sum(config.build_algo().weights_bytes.values())

    more = {
        "env_to_module_connector": piece(
            "env_to_module.frame_stacking:FrameStackingEnvToModule", num_frames=4
        )
    }
    stacked, plain = ran(lambda: main(**more)), ran(main)
    assert stacked - plain == 4 * 3 * 16 * 4 * 4, "3 channels more, 16 filters of 4 x 4"


def test_several_agents_have_their_own_spaces() -> None:
    def main() -> dict[str, int]:
        flat = piece("env_to_module:FlattenObservations", multi_agent=True)
        config = config_of(Two, env_to_module_connector=flat)
        config.multi_agent(
            policies={"p", "q"}, policy_mapping_fn=lambda a, *_, **__: "pq"[a == "y"]
        )
        algo = config.build_algo()
        algo.train()
        found: dict[str, int] = algo.weights_bytes
        return found

    each = 4 * (6 * 256 + 257 * 256 + 257 * 2)
    assert ran(main) == {"p": each, "q": each}


def test_a_piece_of_ones_own_sees_every_episode() -> None:
    """It is called once for each step of all environments, and its time is part of theirs."""
    calls: list[int] = []

    def build(env: Any, spaces: Any, device: Any) -> Any:
        class Counts(class_of_installed("connectors.connector_v2:ConnectorV2")):  # type: ignore[misc]
            def __call__(self, *, episodes: Any, batch: Any, **_: Any) -> Any:
                import time

                time.sleep(0.001)
                calls.append(sum(1 for _ in self.single_agent_episode_iterator(episodes)))
                return batch

        return Counts()

    def main(**more: Any) -> float:
        config = config_of(Slow, num_envs_per_env_runner=2, **more)
        return float(config.build_algo().train()["timers"]["env_runner_sampling_timer"])

    slower, plain = ran(lambda: main(env_to_module_connector=build)), ran(main)
    assert slower - plain == pytest.approx(0.1, rel=0.01)
    assert len(calls) == 1 + 100, "after the resets, and after each step"
    assert sum(calls) == 2 * 101 + 4, "each ends two episodes of fifty steps"


def test_what_is_no_connector_is_refused_as_rllib_does() -> None:
    config = config_of(Rooms, env_to_module_connector=lambda env: SimpleNamespace())
    with pytest.raises(ValueError, match="must return a ConnectorV2"):
        ran(config.build_algo)
