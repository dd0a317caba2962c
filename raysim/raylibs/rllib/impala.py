"""IMPALA: runners sample all the time, learners take batches as they come, weights follow.

Real counterpart: ``IMPALA.training_step`` (ray 2.60): each runner has its requests in flight and is
asked again as soon as it answers; batches go to aggregators or learners that have room, and are
dropped otherwise; every ``broadcast_interval`` updates, runners that have answered since the last
broadcast get the weights. Ray's loop polls; here it wakes when something has come, and a
core is kept busy meanwhile if the costs say so. APPO keeps
batches for several updates (``iterations_per_batch``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Queue, Script, compute, drop, get, now, put, spawn, spend
from raysim.raycore.tasks import Payload, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.rllib.actors import GIVE_UP_NS, Aggregator, died, placed
from raysim.raylibs.rllib.algorithm import Algorithm
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.result import Iteration, TrainingResult

POLLING_S = 20e-3
"""Of a core, by which polling goes on."""


def train(
    process: CoreProcess,
    config: AlgorithmConfig,
    streams: Any,
    *,
    env_steps: int,
    name: str = "impala",
) -> Script:
    """``algo.train()`` until so many env steps have been trained on: a ``TrainingResult``."""
    began_ns = yield now()
    impala = Impala(process, config, streams, name)
    assert config.num_learners, "IMPALA's learners are actors: num_learners is 0"
    yield from impala.start()
    ready_ns = yield now()
    while not impala.over(env_steps):
        yield from impala.iteration(env_steps)
    return TrainingResult(
        began_ns=began_ns, ready_ns=ready_ns, ended_ns=(yield now()),
        iterations=tuple(impala.iterations), runner_failures=impala.group.failures,
        policy_lag=impala.policy_lag,
    )  # fmt: skip


class Impala(Algorithm):
    """``IMPALA``, ``APPO``."""

    def __init__(
        self, process: CoreProcess, config: AlgorithmConfig, streams: Any, name: str
    ) -> None:
        super().__init__(process, config, streams, name)
        self._aggregators: list[ActorHandle] = []
        self._inbox = Queue()
        self._package: list[Ref] = []
        self._packed_steps = self._packed_more = 0
        self._polling = 0
        self._at_aggregator: list[int] = []
        self._updating = 0
        self._since_broadcast = 0
        self._answered: dict[int, None] = {}
        self._lags: list[int] = []
        self._now = self._last = Iteration(
            began_ns=0, ended_ns=0, env_steps_sampled=0, env_steps_trained=0
        )
        """Sums since the start, now and at the end of the last iteration."""

    def _begin(self) -> Script:
        """Aggregators, the first weights and requests."""
        config = self._config
        for _ in range(config.num_aggregator_actors_per_learner * max(config.num_learners, 1)):
            kind = placed(ActorClass(cls=Aggregator, resources={"CPU": 1}), config)
            self._aggregators.append((yield from kind.remote(config)))
        self._at_aggregator = [0] * len(self._aggregators)
        yield from self._broadcast(list(range(len(self.group.runners))))
        for i in range(len(self.group.runners)):
            yield from self._ask(i)
        self._last = replace(self._last, ended_ns=(yield now()))

    def stop(self) -> Script:
        """All actors end."""
        yield from super().stop()
        for aggregator in self._aggregators:
            yield aggregator.kill()

    @property
    def policy_lag(self) -> float:
        """Of the fragments so far."""
        return sum(self._lags) / len(self._lags) if self._lags else 0.0

    def over(self, env_steps: int) -> bool:
        """So many have been trained on, or nobody samples any more."""
        return self._now.env_steps_trained >= env_steps or not self.group.num_healthy

    def iteration(self, most_steps: int | None = None) -> Script:
        """One ``train()``: events until it is long enough, or all has been trained on."""
        if self._config.costs.polling_cores and self.group.local is None:
            self._polling += 1
            yield spawn(self._poll(self._polling))
        done = yield from self._events(most_steps)
        self._polling += 1
        return done

    def _poll(self, turn: int) -> Script:
        """The loop of training steps that find nothing new: cores of the driver's node."""
        while self._polling == turn:
            yield compute(POLLING_S, self._config.costs.polling_cores)

    def _events(self, most_steps: int | None) -> Script:
        config, group = self._config, self.group
        before, count = self._last, 0
        since_ns = yield now()
        while True:
            if group.local is None:
                handle, value = yield self._inbox.get()
                yield from handle(value)
            else:
                yield from self._sample_here(group.local)
            count += 1
            yield from self._restore()
            at_ns = yield now()
            if (most_steps is not None and self.over(most_steps)) or not group.num_healthy:
                break
            if group.error is not None:
                break
            if self._long_enough(at_ns - since_ns, self._now - before):
                break
        if config.costs.iteration_core_s:
            yield compute(config.costs.iteration_core_s)
        self._last = replace(self._now, ended_ns=(yield now()))
        self.iterations.append(replace(self._last - before, training_steps=count))
        return self.iterations[-1]

    def _count(
        self, *, sampled: int = 0, trained: int = 0, dropped: int = 0, added: int = 0,
        took_s: float = 0.0,
    ) -> None:  # fmt: skip
        total = self._now
        self._now = replace(
            total, env_steps_sampled=total.env_steps_sampled + sampled,
            env_steps_trained=total.env_steps_trained + trained,
            env_steps_dropped=total.env_steps_dropped + dropped,
            steps_added=total.steps_added + added, learn_s=total.learn_s + took_s,
        )  # fmt: skip

    def _ask(self, index: int) -> Script:
        for _ in range(self._config.max_requests_in_flight_per_env_runner):
            yield spawn(self._sample(index))

    def _sample(self, index: int) -> Script:
        refs = yield self.group.runners[index].call("sample")
        values = yield get(refs)
        self._inbox.put_nowait((self._sampled_by, (index, refs[0], values)))

    def _sample_here(self, runner: Any) -> Script:
        """Without actors the driver's own runner samples in each training step."""
        value = yield from runner.sample()
        if isinstance(value, TaskError):
            self.group.error, self.group.local = value, None
            return
        steps, _, added = value.value
        self._count(sampled=steps)
        self._packed_steps += steps
        self._packed_more += added
        if self._packed_steps >= self._config.train_batch_size:
            steps, added = self._packed()
            yield from self._to_learners([], steps, added, batched=False)
        while len(self._inbox):
            handle, came = yield self._inbox.get()
            yield from handle(came)

    def _sampled_by(self, came: tuple[int, Ref, Any]) -> Script:
        index, ref, values = came
        yield spend(round(self._config.costs.request_s * 1e9))
        if died(values):
            if self.group.healthy[index]:
                self.group.failed(index, values)
            yield drop(ref)
            return
        steps, seq_no, added = values[0].data
        self._count(sampled=steps)
        self._lags.append(self._seq_no - seq_no)
        self._answered[index] = None
        yield spawn(self._sample(index))
        self._package.append(ref)
        self._packed_steps += steps
        self._packed_more += added
        if self._packed_steps >= self._config.train_batch_size:
            package, self._package = self._package, []
            yield from self._pass_on(package, *self._packed())

    def _packed(self) -> tuple[int, int]:
        """Env steps of the package, and what is added to them; the next one begins."""
        found = self._packed_steps, self._packed_more
        self._packed_steps = self._packed_more = 0
        return found

    def _restore(self) -> Script:
        assert self._weights is not None, "restored before the first weights were sent"
        weights = (self._seq_no, self._weights)
        since_ns = yield now()
        while self.group.may_sample and (yield now()) - since_ns < GIVE_UP_NS:
            for index in (yield from self.group.restore(weights)):
                yield from self._ask(index)
            if self.group.num_healthy or not self.group.runners:
                return

    def _pass_on(self, package: list[Ref], steps: int, added: int) -> Script:
        if not self._aggregators:
            yield from self._to_learners(package, steps, added, batched=False)
            return
        free = min(range(len(self._aggregators)), key=lambda i: self._at_aggregator[i])
        if self._at_aggregator[free] >= self._config.max_requests_in_flight_per_aggregator_actor:
            self._count(dropped=steps)
            yield drop(*package)
            return
        self._at_aggregator[free] += 1
        yield spawn(self._aggregate(free, package, steps, added))

    def _aggregate(self, index: int, package: list[Ref], steps: int, added: int) -> Script:
        refs = yield self._aggregators[index].call(
            "get_batch", self._config.samples(steps, 0), *package
        )
        yield get(refs)
        self._inbox.put_nowait((self._aggregated, (index, package, refs, steps, added)))

    def _aggregated(self, came: tuple[int, list[Ref], list[Ref], int, int]) -> Script:
        index, package, refs, steps, added = came
        self._at_aggregator[index] -= 1
        yield drop(*package)
        yield from self._to_learners(refs, steps, added, batched=True)

    def _to_learners(self, data: list[Ref], steps: int, added: int, *, batched: bool) -> Script:
        if self._updating >= self._config.max_requests_in_flight_per_learner:
            self._count(dropped=steps)
            yield drop(*data)
            return
        self._updating += 1
        if self.learners.actors:
            yield spawn(self._update(data, steps, added, batched=batched))
        else:  # the driver's own learner: it waits
            yield from self._update(data, steps, added, batched=batched)

    def _update(self, data: list[Ref], steps: int, added: int, *, batched: bool) -> Script:
        shares = [data] * len(self.learners.actors)
        took_s = yield from self.learners.update(
            self._config.samples(steps, added), shares, batched=batched
        )
        self._inbox.put_nowait((self._updated, (data, steps, added, took_s)))

    def _updated(self, came: tuple[list[Ref], int, int, float | TaskError]) -> Script:
        data, steps, added, took_s = came
        self._updating -= 1
        if isinstance(took_s, TaskError):
            self.group.error = took_s
            yield drop(*data)
            return
        self._count(trained=steps, added=added, took_s=took_s)
        yield drop(*data)
        self._since_broadcast += 1
        if self._since_broadcast >= self._config.broadcast_interval and self._answered:
            answered, self._answered = list(self._answered), {}
            yield from self._broadcast(answered)

    def _broadcast(self, indices: list[int]) -> Script:
        self._since_broadcast = 0
        self._seq_no += 1
        if self._weights is not None:
            yield drop(self._weights)
        self._weights = yield put(Payload(self._config.priced(self._process).weights_bytes))
        for i in indices:
            if self.group.healthy[i]:
                refs = yield self.group.runners[i].call("set_weights", self._seq_no, self._weights)
                yield drop(*refs)
