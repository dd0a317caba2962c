"""IMPALA: runners sample all the time, learners take batches as they come, weights follow.

Real counterpart: ``IMPALA.training_step`` (ray 2.60): each runner has its requests in flight and is
asked again as soon as it answers; batches go to aggregators or learners that have room, and are
dropped otherwise; every ``broadcast_interval`` updates, runners that have answered since the last
broadcast get the weights. Ray's loop polls; here it wakes when something has come.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Queue, Script, drop, get, now, put, spawn, spend
from raysim.raycore.tasks import Payload, Ref
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.rllib.actors import GIVE_UP_NS, Aggregator, EnvRunnerGroup, died
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.ppo import start_learners
from raysim.raylibs.rllib.result import Iteration, TrainingResult


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
    group = EnvRunnerGroup(config, streams, name)
    yield from group.start()
    learners = yield from start_learners(config)
    assert learners, "IMPALA's learners are actors: num_learners is 0"
    aggregators: list[ActorHandle] = []
    for _ in range(config.num_aggregator_actors_per_learner * config.num_learners):
        kind = ActorClass(cls=Aggregator, resources={"CPU": 1})
        aggregators.append((yield from kind.remote(config)))
    loop = _Loop(process, config, group, learners, aggregators)
    return (yield from loop.run(env_steps, began_ns))


class _Loop:
    def __init__(
        self,
        process: CoreProcess,
        config: AlgorithmConfig,
        group: EnvRunnerGroup,
        learners: list[ActorHandle],
        aggregators: list[ActorHandle],
    ) -> None:
        self._process = process
        self._config = config
        self._group = group
        self._learners = learners
        self._aggregators = aggregators
        self._inbox = Queue()
        self._package: list[Ref] = []
        self._packed_steps = 0
        self._at_aggregator = [0] * len(aggregators)
        self._updating = 0
        self._since_broadcast = 0
        self._answered: dict[int, None] = {}
        self._seq_no = 0
        self._weights: Ref | None = None
        self._lags: list[int] = []
        self._sampled = self._trained = self._dropped = 0
        self._learn_s = 0.0

    def run(self, env_steps: int, began_ns: int) -> Script:
        """The loop of ``training_step``s, one event at a time."""
        config, group = self._config, self._group
        yield from self._broadcast(list(range(len(group.runners))))
        for i in range(len(group.runners)):
            yield from self._ask(i)
        ready_ns = yield now()
        iterations: list[Iteration] = []
        mark = (ready_ns, 0, 0, 0, 0.0)
        over = False
        while not over:
            handle, value = yield self._inbox.get()
            yield from handle(value)
            yield from self._restore()
            at_ns = yield now()
            over = self._trained >= env_steps or not group.num_healthy
            if over or at_ns - mark[0] >= config.min_time_s_per_iteration * 1e9 > 0:
                iterations.append(
                    Iteration(
                        began_ns=mark[0], ended_ns=at_ns, learn_s=self._learn_s - mark[4],
                        env_steps_sampled=self._sampled - mark[1],
                        env_steps_trained=self._trained - mark[2],
                        env_steps_dropped=self._dropped - mark[3],
                    )
                )  # fmt: skip
                mark = (at_ns, self._sampled, self._trained, self._dropped, self._learn_s)
        return TrainingResult(
            began_ns=began_ns, ready_ns=ready_ns, ended_ns=(yield now()),
            iterations=tuple(iterations), runner_failures=group.failures,
            policy_lag=sum(self._lags) / len(self._lags) if self._lags else 0.0,
        )  # fmt: skip

    def _ask(self, index: int) -> Script:
        for _ in range(self._config.max_requests_in_flight_per_env_runner):
            yield spawn(self._sample(index))

    def _sample(self, index: int) -> Script:
        refs = yield self._group.runners[index].call("sample")
        values = yield get(refs)
        self._inbox.put_nowait((self._sampled_by, (index, refs[0], values)))

    def _sampled_by(self, came: tuple[int, Ref, Any]) -> Script:
        index, ref, values = came
        yield spend(round(self._config.costs.request_s * 1e9))
        if died(values):
            if self._group.healthy[index]:
                self._group.failed(index)
            yield drop(ref)
            return
        steps, seq_no = values[0].data
        self._sampled += steps
        self._lags.append(self._seq_no - seq_no)
        self._answered[index] = None
        yield spawn(self._sample(index))
        self._package.append(ref)
        self._packed_steps += steps
        if self._packed_steps >= self._config.train_batch_size:
            package, steps = self._package, self._packed_steps
            self._package, self._packed_steps = [], 0
            yield from self._pass_on(package, steps)

    def _restore(self) -> Script:
        assert self._weights is not None, "restored before the first weights were sent"
        weights = (self._seq_no, self._weights)
        since_ns = yield now()
        while self._group.may_sample and (yield now()) - since_ns < GIVE_UP_NS:
            for index in (yield from self._group.restore(weights)):
                yield from self._ask(index)
            if self._group.num_healthy:
                return

    def _pass_on(self, package: list[Ref], steps: int) -> Script:
        if not self._aggregators:
            yield from self._to_learners(package, steps, package)
            return
        free = min(range(len(self._aggregators)), key=lambda i: self._at_aggregator[i])
        if self._at_aggregator[free] >= self._config.max_requests_in_flight_per_aggregator_actor:
            self._dropped += steps
            yield drop(*package)
            return
        self._at_aggregator[free] += 1
        yield spawn(self._aggregate(free, package, steps))

    def _aggregate(self, index: int, package: list[Ref], steps: int) -> Script:
        refs = yield self._aggregators[index].call("get_batch", steps, *package)
        yield get(refs)
        self._inbox.put_nowait((self._aggregated, (index, package, refs, steps)))

    def _aggregated(self, came: tuple[int, list[Ref], list[Ref], int]) -> Script:
        index, package, refs, steps = came
        self._at_aggregator[index] -= 1
        yield drop(*package)
        yield from self._to_learners(refs, steps, ())

    def _to_learners(self, data: list[Ref], steps: int, episodes: Any) -> Script:
        if self._updating >= self._config.max_requests_in_flight_per_learner:
            self._dropped += steps
            yield drop(*data)
            return
        self._updating += 1
        yield spawn(self._update(data, steps, episodes))

    def _update(self, data: list[Ref], steps: int, episodes: Any) -> Script:
        refs: list[Ref] = []
        for learner in self._learners:
            refs += yield learner.call("update", steps, *(episodes or data))
        yield get(refs)
        yield drop(*refs)
        self._inbox.put_nowait((self._updated, (data, steps)))

    def _updated(self, came: tuple[list[Ref], int]) -> Script:
        data, steps = came
        self._updating -= 1
        self._trained += steps
        self._learn_s += self._config.update_s(steps)
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
        self._weights = yield put(Payload(self._config.model.weights_bytes))
        for i in indices:
            if self._group.healthy[i]:
                refs = yield self._group.runners[i].call("set_weights", self._seq_no, self._weights)
                yield drop(*refs)
