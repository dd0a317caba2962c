"""Iterations of real RLlib on two cores, and what is said of them (validation/data/rllib)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from raysim.rayapi.loader import run_program
from raysim.scenario.declaration import ClusterDeclaration, NodeDeclaration
from raysim.scenario.profile import load_profile
from raysim.validate.emulated import declared_cluster
from raysim.validate.replayed import PROFILE, Against

DATA = Path(__file__).parents[4] / "validation/data"
ROWS = json.loads((DATA / "rllib/iterations.json").read_text(encoding="utf-8"))["rows"]
MEMORY_BYTES = 24 << 30
BOUNDS = {
    "no runner": 0.1, "1 runner": 0.15, "1 learner": 0.12, "pendulum": 0.12, "impala": 0.14,
    "impala, 4 environments": 0.45,
}  # fmt: skip
"""Of the error, where it is more than 7 %. Environments cost nothing here but their sleeps; with
their own time measured Pendulum's row is 2 % off, and IMPALA's 4 %."""


class Sleepy(gym.Env[Any, Any]):
    """A millisecond a step, a hundred steps an episode."""

    def __init__(self, _config: Any = None) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """As gymnasium's."""
        super().reset(seed=seed, options=options)
        self.steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        """As gymnasium's."""
        time.sleep(0.001)
        self.steps += 1
        return np.zeros(4, np.float32), float(action), self.steps == 100, False, {}


def iterations(said: dict[str, Any]) -> tuple[float, list[dict[str, Any]]]:
    """Seconds to build it, and results of what a row's program says."""

    def main() -> Any:
        import ray
        import ray.rllib.algorithms as names

        ray.init()
        module = {"fcnet_hiddens": said.get("hiddens", [256, 256]), "vf_share_layers": False}
        env = said.get("env", "CartPole-v1")
        config = getattr(names, f"{said.get('algorithm', 'PPO')}Config")().environment(
            Sleepy if env == "sleepy" else env
        )
        config.env_runners(
            num_env_runners=said["runners"], num_envs_per_env_runner=said.get("envs", 1)
        )
        config.rl_module(model_config=module).training(**said.get("training", {}))
        if "learners" in said:
            config.learners(num_learners=said["learners"])
        began_s = time.perf_counter()
        algo = config.build_algo()
        built_s = time.perf_counter() - began_s
        return built_s, [algo.train() for _ in range(3)]

    against = Against.at(DATA / "amd-epyc-2core/2026-11-25")
    node = NodeDeclaration(num_cpus=4)
    declared = ClusterDeclaration(text="", nodes=(node,), named=False, disturbed=False)
    box = against._host(2, MEMORY_BYTES)
    costs = load_profile(against.folder / PROFILE).ray_costs()
    found: tuple[float, list[dict[str, Any]]]
    found, _ = run_program(main, declared_cluster(declared, [box], costs=costs).cluster)
    return found


@pytest.mark.parametrize("row", [r for r in ROWS if "left_out" not in r], ids=lambda r: r["name"])
def test_iterations_take_what_they_took(row: dict[str, Any]) -> None:
    _, results = iterations(row["program"])
    if "iteration_s" in row:
        measured = median(row["iteration_s"][1:])
        predicted = results[-1]["time_this_iter_s"]
    else:
        measured = median(row["env_steps_per_iteration"])
        predicted = results[-1]["env_runners"]["num_env_steps_sampled"]
    error = predicted / measured - 1
    assert abs(error) < BOUNDS.get(row["name"], 0.07), f"{row['name']}: {error:+.0%}"


@pytest.mark.parametrize("name", ["no runner", "8 environments", "1 learner"])
def test_building_takes_what_it_took(name: str) -> None:
    """Two runners on two cores took 4.5 s, 38 % more than is said: files are read but once here."""
    row = next(r for r in ROWS if r["name"] == name)
    built_s, _ = iterations(row["program"])
    assert built_s == pytest.approx(row["build_s"], rel=0.12)
