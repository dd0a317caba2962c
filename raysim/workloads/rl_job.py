"""RLlib's PPO or IMPALA by numbers: simulators on CPUs, learners on GPUs.

Real counterpart: a user's script around ``config.build().train()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raylibs.report import Unit
from raysim.raylibs.rllib import impala, ppo
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.report import report_of
from raysim.raylibs.rllib.result import TrainingResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RlJob:
    """Train on so many env steps."""

    config: AlgorithmConfig
    env_steps: int
    kind: str = "rl"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """What targets may limit."""
        return {
            "env_steps_per_s": "per_s", "seconds_to_finish": "seconds", "learning": "share",
            "dropped": "share",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        train = ppo.train if self.config.algorithm == "PPO" else impala.train
        result: TrainingResult = yield from train(
            process, self.config, streams, env_steps=self.env_steps
        )
        return report_of(self.config, result, ok=result.env_steps_trained >= self.env_steps)
