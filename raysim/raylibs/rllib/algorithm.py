"""What every algorithm has: its runners, its learners, the weights it sends, iterations so far.

Real counterpart: ``Algorithm`` (ray 2.60).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import Ref
from raysim.raylibs.rllib.actors import EnvRunnerGroup, LearnerGroup
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.result import Iteration


class Algorithm(ABC):
    """An algorithm, driven by whoever calls ``iteration``."""

    def __init__(
        self, process: CoreProcess, config: AlgorithmConfig, streams: Any, name: str
    ) -> None:
        self._process = process
        self._config = config
        self.group = EnvRunnerGroup(process, config, streams, name)
        self.learners = LearnerGroup(process, config)
        self._seq_no = 0
        self._weights: Ref | None = None
        self.iterations: list[Iteration] = []

    @property
    def policy_lag(self) -> float:
        """Broadcasts between the weights of a fragment and the newest, in the mean."""
        return 0.0

    def start(self) -> Script:
        """Runners, learners, and the first weights; a TaskError of the user's code."""
        failed = yield from self.group.start()
        if failed is not None:
            return failed
        yield from self.learners.start()
        yield from self._begin()
        return None

    @abstractmethod
    def _begin(self) -> Script:
        """The first weights, and what else comes before the first iteration."""

    @abstractmethod
    def iteration(self) -> Script:
        """One ``train()``: an ``Iteration``."""

    def stop(self) -> Script:
        """All actors end."""
        yield from self.group.stop()
        yield from self.learners.stop()

    def _long_enough(self, took_ns: int, done: Iteration) -> bool:
        """``TrainIterCtx.should_stop``."""
        config = self._config
        return (
            took_ns >= config.min_time_s_per_iteration * 1e9
            and done.env_steps_sampled >= config.min_sample_steps_per_iteration
            and done.env_steps_trained >= config.min_train_steps_per_iteration
        )
