"""Env runners, learners and aggregators as actors; the group of runners that outlives failures.

Real counterparts (ray 2.60): ``rllib/env/env_runner_group.py``, ``rllib/core/learner``,
``rllib/utils/actor_manager.py``, ``rllib/algorithms/utils.py`` (``AggregatorActor``). A learner's
update is a wait: its GPU is its own.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, get, sleep, wait
from raysim.raycore.tasks import ActorOptions, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle, Sized, imports
from raysim.raylibs.rllib.config import AlgorithmConfig

LIBRARY = "ray.rllib"
MAX_RESTARTS = 1000
"""``max_num_env_runner_restarts``."""
FEWEST = 0.2
"""A sample takes at least so much of its mean."""


PROBE_AGAIN_NS = 10**9
"""With no runner left, Ray's loop spins; here it looks once a second."""
GIVE_UP_NS = 3600 * 10**9
"""Ray would go on for ever; here training ends after so long without an env step trained on."""


def died(values: Any) -> bool:
    """What ``get`` of one answer says when its actor died."""
    return isinstance(values, TaskError) or isinstance(values[0], TaskError)


class EnvRunner:
    """``SingleAgentEnvRunner``."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig, draws: Any) -> None:
        self._config = config
        self._draws = draws
        self._process = process
        self.weights_seq_no = 0

    def sample(self) -> Script:
        """A fragment of each environment: its steps and the weights they were made with."""
        config = self._config
        cv = config.env.sample_cv
        factor = max(FEWEST, float(self._draws.normal(1.0, cv))) if cv else 1.0
        width = config.num_cpus_per_env_runner or 1
        seq_no = self.weights_seq_no
        yield from _loaded(self._process, self._config)
        yield compute(config.sample_core_s * factor / width, width)
        return Sized((config.sample_steps, seq_no), config.sample_bytes)

    def set_weights(self, seq_no: int, _weights: object) -> None:
        """The newest policy."""
        self.weights_seq_no = max(self.weights_seq_no, seq_no)

    def ping(self) -> Script:
        """It lives, and has its environment and module."""
        yield from _loaded(self._process, self._config)
        return "pong"


class Learner:
    """``TorchLearner``: one rank of the update."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig) -> None:
        self._config = config
        self._process = process

    def update(self, steps: int, *episodes: object) -> Script:
        """One update on its share of so many env steps; the env steps."""
        config = self._config
        if episodes:
            yield from _batched(config, steps / max(config.num_learners, 1))
        took_s = config.update_s(steps)
        yield sleep(round(took_s * 1e9))
        return steps

    def get_weights(self) -> Script:
        """For the broadcast."""
        yield from _loaded(self._process, self._config)
        return Sized("weights", self._config.model.weights_bytes)


class Aggregator:
    """``AggregatorActor``: episodes in, a batch out."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig) -> None:
        self._config = config
        self._process = process

    def get_batch(self, steps: int, *_episodes: object) -> Script:
        """A batch for each learner."""
        yield from _loaded(self._process, self._config)
        yield from _batched(self._config, steps)
        return Sized(steps, steps * self._config.env.observation_bytes)


def _loaded(process: CoreProcess, config: AlgorithmConfig) -> Script:
    """What an actor does before its first answer."""
    return imports(process, LIBRARY, config.costs.import_core_s)


def _batched(config: AlgorithmConfig, steps: float) -> Script:
    size_bytes = steps * config.env.observation_bytes
    yield compute(size_bytes * config.costs.episode_core_s_per_byte)


class EnvRunnerGroup:
    """``EnvRunnerGroup``: who is healthy, who has come back.

    Parameters
    ----------
    config
        The algorithm's.
    streams
        Named random streams: of each runner.
    name
        Of the algorithm, for the streams.
    """

    def __init__(self, config: AlgorithmConfig, streams: Any, name: str) -> None:
        self._config = config
        self._streams = streams
        self._name = name
        self.runners: list[ActorHandle] = []
        self.healthy: list[bool] = []
        self.failures = 0

    def start(self) -> Script:
        """All of them, and wait until they are there."""
        config = self._config
        restarts = MAX_RESTARTS if config.restart_failed_env_runners else 0
        kind = ActorClass(
            cls=EnvRunner,
            resources={"CPU": config.num_cpus_per_env_runner},
            actor=ActorOptions(max_restarts=restarts),
        )
        for i in range(config.num_env_runners):
            draws = self._streams(f"rllib/{self._name}/runner-{i}")
            self.runners.append((yield from kind.remote(config, draws)))
        self.healthy = [True] * len(self.runners)
        yield from self.settle()

    def settle(self) -> Script:
        """Wait until all have done what they were asked."""
        refs: list[Ref] = []
        for runner in self.runners:
            refs += yield runner.call("ping")
        for i, ref in enumerate(refs):
            values = yield get([ref])
            if self.healthy[i] and died(values):
                self.failed(i)
        yield drop(*refs)

    @property
    def num_healthy(self) -> int:
        """That are asked to sample."""
        return sum(self.healthy)

    @property
    def may_sample(self) -> bool:
        """Somebody samples, or may come back."""
        return bool(self.num_healthy) or self._config.restart_failed_env_runners

    def failed(self, index: int) -> None:
        """Its actor has died; Ray starts it again."""
        self.healthy[index] = False
        self.failures += 1

    def restore(self, weights: tuple[int, Ref]) -> Script:
        """``restore_env_runners``: ping those that failed, wait for them; who is back, by index.

        The driver does nothing else meanwhile, up to the timeout of the probe.
        """
        config = self._config
        if self.num_healthy == len(self.runners) or not config.restart_failed_env_runners:
            return []
        pings: dict[Ref, int] = {}
        for i, runner in enumerate(self.runners):
            if not self.healthy[i]:
                refs = yield runner.call("ping")
                pings[refs[0]] = i
        timeout_ns = round(config.env_runner_health_probe_timeout_s * 1e9)
        ready = yield wait(list(pings), len(pings), timeout_ns=timeout_ns)
        back: list[int] = []
        for (ref, i), is_there in zip(pings.items(), ready, strict=True):
            answered = is_there and not died((yield get([ref])))
            yield drop(ref)
            if answered:
                yield from self.runners[i].ask("set_weights", *weights)
                self.healthy[i] = True
                back.append(i)
        if not self.num_healthy:
            yield sleep(PROBE_AGAIN_NS)
        return back
