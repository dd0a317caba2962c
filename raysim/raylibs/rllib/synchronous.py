"""Algorithms that sample, update and send weights in turn: what PPO and DQN share.

Real counterpart: ``Algorithm`` and ``synchronous_parallel_sample`` (ray 2.60): a round waits for
all healthy runners, at most ``sample_timeout_s``; who is late is asked again in the next round,
behind what it still does, and its late episodes are dropped.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from raysim.raycore.scripts import Script, compute, drop, get, now, put, spend, wait
from raysim.raycore.tasks import Payload, Ref, TaskError
from raysim.raylibs.rllib.actors import died
from raysim.raylibs.rllib.algorithm import Algorithm
from raysim.raylibs.rllib.result import Iteration


class Synchronous(Algorithm):
    """Whose driver waits for each part of a training step."""

    def _begin(self) -> Script:
        yield from self.sync()

    def iteration(self) -> Script:
        """One ``train()``: training steps until it is long enough; an ``Iteration``."""
        config, began_ns = self._config, (yield now())
        done = Iteration(
            began_ns=began_ns, ended_ns=began_ns, env_steps_sampled=0, env_steps_trained=0,
            training_steps=0,
        )  # fmt: skip
        while not done.training_steps or not self._long_enough((yield now()) - began_ns, done):
            done = done + (yield from self._training_step())
            assert self._weights is not None, "an iteration before the first weights were sent"
            yield from self.group.restore((self._seq_no, self._weights))
            if not self.group.num_healthy or self.group.error is not None:
                break
        if config.costs.iteration_core_s:
            yield compute(config.costs.iteration_core_s)
        self.iterations.append(replace(done, ended_ns=(yield now())))
        return self.iterations[-1]

    @abstractmethod
    def _training_step(self) -> Script:
        """One ``training_step``: an ``Iteration`` of its own."""

    def _sample(self, fewest: int) -> Script:
        """In rounds, until there are so many env steps.

        (env steps, what is added to them, steps that came too late, references to episodes)
        """
        group = self.group
        steps = added = dropped = 0
        episodes: list[Ref] = []
        while steps < fewest and group.num_healthy:
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
        if self._config.costs.sync_core_s:
            yield compute(self._config.costs.sync_core_s)
        if self._weights is not None:
            yield drop(self._weights)
        self._weights = yield from self.learners.weights()
        for i, runner in enumerate(self.group.runners):
            if self.group.healthy[i]:
                refs = yield runner.call("set_weights", self._seq_no, self._weights)
                yield drop(*refs)
