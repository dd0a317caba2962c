"""Env runners, learners and aggregators as actors; the group of runners that outlives failures.

Real counterparts (ray 2.60): ``rllib/env/env_runner_group.py``, ``rllib/core/learner``,
``rllib/utils/actor_manager.py``, ``rllib/algorithms/utils.py`` (``AggregatorActor``). A learner's
update is a wait: its GPU is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, get, put, sleep, spend, wait
from raysim.raycore.tasks import ActorOptions, Payload, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle, Sized, imports
from raysim.raylibs.rllib.config import AlgorithmConfig, UserEnv

LIBRARY = "ray.rllib"
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
    """``SingleAgentEnvRunner``; the one of index 0 is no actor: it lives in the driver."""

    def __init__(
        self, process: CoreProcess, config: AlgorithmConfig, index: int, draws: Any
    ) -> None:
        self._config = config
        self._index = index
        self._draws = draws
        self._process = process
        self._env = None if config.make_env is None else config.make_env(process, index)
        self._made = False
        self.weights_seq_no = 0

    def sample(self) -> Script:
        """A fragment of each environment.

        Its steps, the weights they were made with, and what the learner adds: one to each episode.
        """
        config, seq_no, added = self._config, self.weights_seq_no, 0
        failed = yield from self._loaded()
        if failed is not None:
            return failed
        steps = config.sample_steps(self._index)
        if self._env is None:
            yield from self._by_numbers()
        else:
            envs = config.num_envs_per_env_runner
            found = yield from self._sampled(self._env, envs)
            if isinstance(found, TaskError):
                return found
            steps, asked = found
            yield from self._passes(asked)
            yield compute(config.costs.sample_core_s)
            added = round(asked * envs - steps) + envs * (not config.complete_episodes)
        return Sized((steps, seq_no, added), steps * config.step_bytes(self._process))

    def _sampled(self, env: UserEnv, envs: int) -> Script:
        """(env steps, how often the module was asked)."""
        if self._config.complete_episodes:
            return (yield from env.evaluate(envs))
        count = self._config.fragment(self._index)
        asked = yield from env.sample(count)
        return asked if isinstance(asked, TaskError) else (count * envs, asked)

    def evaluate(self, unit: str, count: int) -> Script:
        """``sample(num_episodes=)``, or so many env steps: (env steps, episodes or None)."""
        failed = yield from self._loaded()
        if failed is not None:
            return failed
        assert self._env is not None, "evaluated without an environment"
        envs = self._config.num_envs_per_env_runner
        if unit == "episodes":
            value = yield from self._env.evaluate(count)
            if isinstance(value, TaskError):
                return value
            steps, asked = value
            yield from self._passes(asked)
            return Sized((steps, count), steps * self._config.step_bytes(self._process))
        asked = yield from self._env.sample(ceil(count / envs))
        if isinstance(asked, TaskError):
            return asked
        yield from self._passes(asked)
        steps = ceil(count / envs) * envs
        return Sized((steps, None), steps * self._config.step_bytes(self._process))

    def set_weights(self, seq_no: int, _weights: object) -> None:
        """The newest policy."""
        self.weights_seq_no = max(self.weights_seq_no, seq_no)

    def ping(self) -> Script:
        """It lives, and has its environment and module."""
        failed = yield from self._loaded()
        return "pong" if failed is None else failed

    def _loaded(self) -> Script:
        yield from _loaded(self._process, self._config)
        if self._env is not None and not self._made:
            failed = yield from self._env.make()
            if isinstance(failed, TaskError):
                return failed
            self._made = True
        return None

    def _by_numbers(self) -> Script:
        config = self._config
        cv = config.env.sample_cv
        factor = max(FEWEST, float(self._draws.normal(1.0, cv))) if cv else 1.0
        width = config.num_cpus_per_env_runner or 1
        yield compute(config.sample_core_s(self._index) * factor / width, width)

    def _passes(self, asked: float) -> Script:
        """RLlib's share of so many steps of all environments together."""
        config = self._config
        each_s = config.costs.vector_step_core_s + config.priced(self._process).forward_s
        agents = 1.0 if self._env is None else self._env.agents
        each_s += config.costs.env_step_core_s * config.num_envs_per_env_runner * agents
        yield compute(asked * each_s)


class Learner:
    """``TorchLearner``: one rank of the update."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig) -> None:
        self._built = False
        self._config = config
        self._process = process

    def update(self, steps: int, batched: bool, *_data: object) -> Script:
        """One update on its share of so many env steps; the seconds it took."""
        config, began_ns = self._config, self._process.now_ns
        if not batched:
            yield from _batched(self._process, config, steps / max(config.num_learners, 1))
        model = config.priced(self._process)
        took_s = config.update_s(steps, model)
        if model.on_cores:
            yield compute(took_s)
        else:
            yield sleep(round(took_s * 1e9))
        return (self._process.now_ns - began_ns) / 1e9

    def get_weights(self) -> Script:
        """For the broadcast."""
        yield from _loaded(self._process, self._config)
        if not self._built:
            self._built = True
            yield compute(self._config.costs.learner_core_s)
        model = self._config.priced(self._process)
        return Sized("weights", model.weights_bytes)


class Aggregator:
    """``AggregatorActor``: episodes in, a batch out."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig) -> None:
        self._config = config
        self._process = process

    def get_batch(self, steps: int, *_episodes: object) -> Script:
        """A batch for each learner."""
        yield from _loaded(self._process, self._config)
        yield from _batched(self._process, self._config, steps)
        return Sized(steps, steps * self._config.step_bytes(self._process))


def _loaded(process: CoreProcess, config: AlgorithmConfig) -> Script:
    """What an actor does before its first answer."""
    return imports(process, LIBRARY, config.costs.import_core_s)


def _batched(process: CoreProcess, config: AlgorithmConfig, steps: float) -> Script:
    costs = config.costs
    of_a_step_s = config.step_bytes(process) * costs.episode_core_s_per_byte
    yield compute(steps * (of_a_step_s + costs.train_step_core_s))


def placed(kind: ActorClass, config: AlgorithmConfig) -> ActorClass:
    """In the trial's placement group, if there is one."""
    return kind if config.placement_group is None else kind.in_group(config.placement_group)


class LearnerGroup:
    """``LearnerGroup``: learners as actors, or one in the driver (``num_learners=0``)."""

    def __init__(self, process: CoreProcess, config: AlgorithmConfig) -> None:
        self._process = process
        self._config = config
        self._local = Learner(process, config)
        self.actors: list[ActorHandle] = []

    def start(self) -> Script:
        """All there."""
        config = self._config
        cpu, gpu = config.num_cpus_per_learner, config.num_gpus_per_learner
        resources = {"CPU": cpu, "GPU": gpu, **config.learner_resources}
        kind = placed(ActorClass(cls=Learner, resources=resources), config)
        while len(self.actors) < config.num_learners:
            self.actors.append((yield from kind.remote(config)))
        refs: list[Ref] = []
        for learner in self.actors:
            refs += yield learner.call("get_weights")
        if not refs:
            yield from self._local.get_weights()
            return
        yield get(refs)
        yield drop(*refs)

    def update(
        self, steps: int, shares: Sequence[Sequence[Ref]] = (), *, batched: bool = False
    ) -> Script:
        """An update of all of them, each on its share; the seconds the first one took.

        A TaskError if one has died: RLlib starts none again.
        """
        if not self.actors:
            return (yield from self._local.update(steps, batched))
        refs: list[Ref] = []
        for learner, share in zip(self.actors, shares, strict=True):
            refs += yield learner.call("update", steps, batched, *share)
        values = yield get(refs)
        yield drop(*refs)
        yield spend(round(self._config.costs.learner_request_s * 1e9))
        if died(values):
            return values if isinstance(values, TaskError) else values[0]
        return values[0].data

    def weights(self) -> Script:
        """A reference to the newest ones; remote learners send them to the driver first."""
        if self.actors:
            yield from self.actors[0].ask("get_weights")
            yield spend(round(self._config.costs.learner_request_s * 1e9))
        return (yield put(Payload(self._config.priced(self._process).weights_bytes)))

    def stop(self) -> Script:
        """Its actors end."""
        for learner in self.actors:
            yield learner.kill()


class EnvRunnerGroup:
    """``EnvRunnerGroup``: who is healthy, who has come back.

    Parameters
    ----------
    process
        The driver's.
    config
        The algorithm's.
    streams
        Named random streams: of each runner.
    name
        Of the algorithm, for the streams.
    """

    def __init__(
        self, process: CoreProcess, config: AlgorithmConfig, streams: Any, name: str
    ) -> None:
        self._process = process
        self._config = config
        self._streams = streams
        self._name = name
        self.local: EnvRunner | None = None
        """Without runners that are actors, the driver's own samples."""
        self.runners: list[ActorHandle] = []
        self.healthy: list[bool] = []
        self.failures = self.restarts = 0
        self.error: TaskError | None = None
        """What ends training: the user's code has failed, or who is not started again."""

    def start(self) -> Script:
        """All of them, and wait until they are there; a TaskError if one has no environment."""
        config = self._config
        if not config.num_env_runners:
            self.local = EnvRunner(self._process, config, 0, self._stream(0))
            answer = yield from self.local.ping()
            return answer if isinstance(answer, TaskError) else None
        most = config.max_num_env_runner_restarts
        cpu, gpu = config.num_cpus_per_env_runner, config.num_gpus_per_env_runner
        kind = ActorClass(
            cls=EnvRunner,
            resources={"CPU": cpu, "GPU": gpu, **config.env_runner_resources},
            actor=ActorOptions(max_restarts=most if config.restart_failed_env_runners else 0),
        )
        for i in range(config.num_env_runners):
            runner = yield from placed(kind, config).remote(config, i + 1, self._stream(i))
            self.runners.append(runner)
        self.healthy = [True] * len(self.runners)
        yield from self.settle()
        return self.error

    def _stream(self, index: int) -> Any:
        return self._streams(f"rllib/{self._name}/runner-{index}")

    def settle(self) -> Script:
        """Wait until all have done what they were asked."""
        refs: list[Ref] = []
        for runner in self.runners:
            refs += yield runner.call("ping")
        for i, ref in enumerate(refs):
            values = yield get([ref])
            if self.healthy[i] and died(values):
                self.failed(i, values)
        yield drop(*refs)

    def stop(self) -> Script:
        """Its actors end."""
        for runner in self.runners:
            yield runner.kill()

    @property
    def num_healthy(self) -> int:
        """That are asked to sample."""
        return sum(self.healthy) + (self.local is not None)

    @property
    def may_sample(self) -> bool:
        """Somebody samples, or may come back."""
        return bool(self.num_healthy) or self._config.restart_failed_env_runners

    def failed(self, index: int, values: Any) -> None:
        """Its actor has died, and Ray starts it again; or the user's code has failed in it."""
        self.healthy[index] = False
        self.failures += 1
        error = values if isinstance(values, TaskError) else values[0]
        config = self._config
        goes_on = config.restart_failed_env_runners or config.ignore_env_runner_failures
        if error.error_type == "TASK_EXECUTION_EXCEPTION" or not goes_on:
            self.error = error

    def restore(self, weights: tuple[int, Ref]) -> Script:
        """``restore_env_runners``: ping those that failed, wait for them; who is back, by index.

        The driver does nothing else meanwhile, up to the timeout of the probe.
        """
        config = self._config
        if all(self.healthy) or not config.restart_failed_env_runners:
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
                self.restarts += 1
                back.append(i)
        if not self.num_healthy:
            yield sleep(PROBE_AGAIN_NS)
        return back
