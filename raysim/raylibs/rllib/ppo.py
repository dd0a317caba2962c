"""PPO: sample until there is a batch, update on it, send the weights; nobody works ahead.

Real counterpart: ``PPO.training_step`` and ``synchronous_parallel_sample`` (ray 2.60): a round
waits for all healthy runners, at most ``sample_timeout_s``; who is late is asked again in the next
round, behind what it still does, and its late episodes are dropped.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, get, now, put, spend, wait
from raysim.raycore.tasks import Payload, Ref, TaskError
from raysim.raylibs.rllib.actors import GIVE_UP_NS, EnvRunnerGroup, LearnerGroup, died
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.result import Iteration, TrainingResult


def train(
    process: CoreProcess,
    config: AlgorithmConfig,
    streams: Any,
    *,
    env_steps: int,
    name: str = "ppo",
) -> Script:
    """``algo.train()`` until so many env steps have been trained on: a ``TrainingResult``."""
    began_ns = yield now()
    ppo = Ppo(process, config, streams, name)
    yield from ppo.start()
    group = ppo.group
    ready_ns = yield now()
    trained, last_ns = 0, ready_ns
    while trained < env_steps and group.may_sample:
        iteration = yield from ppo.iteration()
        trained += iteration.env_steps_trained
        if iteration.env_steps_trained:
            last_ns = iteration.ended_ns
        elif iteration.ended_ns - last_ns > GIVE_UP_NS:
            break
    late = bool(ppo.iterations) and ppo.iterations[-1].env_steps_dropped > 0
    if all(group.healthy) and not late:
        yield from group.settle()
    return TrainingResult(
        began_ns=began_ns, ready_ns=ready_ns, ended_ns=(yield now()),
        iterations=tuple(ppo.iterations), runner_failures=group.failures, policy_lag=0.0,
    )  # fmt: skip


class Ppo:
    """``PPO``: an algorithm, driven by whoever calls ``iteration``."""

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

    def start(self) -> Script:
        """Runners, learners, and the first weights; a TaskError of the user's code."""
        failed = yield from self.group.start()
        if failed is not None:
            return failed
        yield from self.learners.start()
        yield from self.sync()
        return None

    def stop(self) -> Script:
        """All actors end."""
        yield from self.group.stop()
        yield from self.learners.stop()

    def iteration(self) -> Script:
        """One ``train()``: training steps until it is long enough; an ``Iteration``."""
        config, began_ns = self._config, (yield now())
        parts = [(yield from self._training_step())]
        while not _long_enough(config, parts, began_ns, (yield now())):
            parts.append((yield from self._training_step()))
            if not self.group.num_healthy or self.group.error is not None:
                break
        if config.costs.iteration_core_s:
            yield compute(config.costs.iteration_core_s)
        steps, added, dropped = (sum(p[i] for p in parts) for i in range(3))
        self.iterations.append(
            Iteration(
                began_ns=began_ns, ended_ns=(yield now()), env_steps_sampled=steps + dropped,
                env_steps_trained=steps, env_steps_dropped=dropped, steps_added=added,
                sample_s=sum(p[3] for p in parts), learn_s=sum(p[4] for p in parts),
                sync_s=sum(p[5] for p in parts), training_steps=len(parts),
            )
        )  # fmt: skip
        return self.iterations[-1]

    def _training_step(self) -> Script:
        """One ``training_step``, and a probe of runners that failed: env steps and seconds."""
        began_ns = yield now()
        steps, added, dropped, episodes = yield from self._sample()
        sampled_ns = yield now()
        if steps:
            yield from self._update(steps + added)
        updated_ns = yield now()
        if steps:
            yield from self.sync()
        yield drop(*episodes)
        synced_ns = yield now()
        assert self._weights is not None, "an iteration before the first weights were sent"
        yield from self.group.restore((self._seq_no, self._weights))
        marks = (began_ns, sampled_ns, updated_ns, synced_ns)
        spans_s = [(b - a) / 1e9 for a, b in pairwise(marks)]
        return steps, added, dropped, *spans_s

    def _sample(self) -> Script:
        """(env steps, what is added to them, steps that came too late, references to episodes)."""
        config, group = self._config, self.group
        steps = added = dropped = 0
        episodes: list[Ref] = []
        while steps < config.train_batch_size and group.num_healthy:
            if group.local is not None:
                value = yield from group.local.sample()
                if isinstance(value, TaskError):
                    group.error = value
                    break
                steps, added = steps + value.value[0], added + value.value[2]
                continue
            came, more, late = yield from self._round(episodes)
            dropped += late
            if not came:
                break
            steps, added = steps + came, added + more
        return steps, added, dropped, episodes

    def _round(self, episodes: list[Ref]) -> Script:
        """All healthy runners sample once: (env steps, what is added, steps that came too late)."""
        config, group = self._config, self.group
        asked: dict[Ref, int] = {}
        for i, runner in enumerate(group.runners):
            if group.healthy[i]:
                refs = yield runner.call("sample")
                asked[refs[0]] = i
        ready = yield wait(list(asked), len(asked), timeout_ns=round(config.sample_timeout_s * 1e9))
        came = added = dropped = 0
        for (ref, i), is_there in zip(asked.items(), ready, strict=True):
            yield spend(round(config.costs.request_s * 1e9))
            if not is_there:
                dropped += config.sample_steps(i + 1)
                yield drop(ref)
                continue
            values = yield get([ref])
            if died(values):
                group.failed(i, values)
                yield drop(ref)
                continue
            came, added = came + values[0].data[0], added + values[0].data[2]
            episodes.append(ref)
        return came, added, dropped

    def _update(self, steps: int) -> Script:
        count = len(self.learners.actors)
        kept: list[Ref] = []
        share = steps * self._config.step_bytes(self._process) // max(count, 1)
        while len(kept) < count:
            kept.append((yield put(Payload(share))))
        took_s = yield from self.learners.update(steps, [[ref] for ref in kept])
        if isinstance(took_s, TaskError):
            self.group.error = took_s
        yield drop(*kept)

    def sync(self) -> Script:
        """Weights to all healthy runners; nobody waits for them to arrive."""
        self._seq_no += 1
        if self._weights is not None:
            yield drop(self._weights)
        self._weights = yield from self.learners.weights()
        for i, runner in enumerate(self.group.runners):
            if self.group.healthy[i]:
                refs = yield runner.call("set_weights", self._seq_no, self._weights)
                yield drop(*refs)


def _long_enough(config: AlgorithmConfig, parts: list[Any], began_ns: int, at_ns: int) -> bool:
    """``TrainIterCtx.should_stop``."""
    sampled, trained = sum(p[0] + p[2] for p in parts), sum(p[0] for p in parts)
    return (
        at_ns - began_ns >= config.min_time_s_per_iteration * 1e9
        and sampled >= config.min_sample_steps_per_iteration
        and trained >= config.min_train_steps_per_iteration
    )
