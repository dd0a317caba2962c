"""Programs of RLlib on small clusters, and an environment whose step takes what it says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.rayapi import compute
from raysim.rayapi.loader import run_program
from raysim.raycore.cluster import Cluster
from raysim.raycore.config import RayConfig
from raysim.raycore.state_log import StateLog
from tests.raycore_parts import ray_cluster


class Slow(gym.Env[Any, Any]):
    """Sleeps ``sleep_s`` and computes ``core_s`` in a step; ``length`` of them are an episode."""

    made: list[Slow] = []  # noqa: RUF012  (what a test looks at)

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = dict(config)
        self.sleep_s, self.core_s = config.get("sleep_s", 0.0), config.get("core_s", 0.0)
        self.length = config.get("length", 50)
        shape = config.get("shape", (4,))
        self.observation_space = gym.spaces.Box(-1.0, 1.0, shape, np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.steps = self.taken = 0
        self.place: Any = None
        Slow.made.append(self)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """As gymnasium's."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As gymnasium's."""
        if self.config.get("fails"):
            raise ValueError("this environment is broken")
        if self.sleep_s:
            time.sleep(self.sleep_s)
        compute.charge(core_seconds=self.core_s)
        self.steps += 1
        self.taken += 1
        seen = np.zeros(self.observation_space.shape, np.float32)
        return seen, 1.0, self.steps == self.length, False, {}


def gpu_cluster(node: str = "g5.2xlarge") -> Cluster:
    """One node with A10G, of the catalog."""
    group = NodeGroup(name="head", node=catalog.node(node), count=1, head=True)
    return Cluster(
        Simulation(seed=0), ClusterSpec(groups=(group,), fabric=FabricSpec(kind="star")),
        config=RayConfig(), costs=RayCosts(), log=StateLog(enabled=True),
    )  # fmt: skip


def ran(main: Callable[[], Any], cluster: Cluster | None = None) -> Any:
    """What the program returns; on eight cores, if nothing is said."""
    Slow.made.clear()
    return run_program(main, cluster or ray_cluster(cpus=8))[0]
