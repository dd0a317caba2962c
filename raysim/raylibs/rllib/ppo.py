"""PPO: sample until there is a batch, update on it, send the weights; nobody works ahead.

Real counterpart: ``PPO.training_step`` and ``synchronous_parallel_sample`` (ray 2.60): a round
waits for all healthy runners, at most ``sample_timeout_s``; who is late is asked again in the next
round, behind what it still does, and its late episodes are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, get, now, put, sleep, spend, wait
from raysim.raycore.tasks import Payload, Ref
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.rllib.actors import GIVE_UP_NS, EnvRunnerGroup, Learner, died
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
    group = EnvRunnerGroup(config, streams, name)
    yield from group.start()
    learners = yield from start_learners(config)
    ppo = _Ppo(process, config, group, learners)
    yield from ppo.sync()
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
    if group.num_healthy == len(group.runners) and not late:
        yield from group.settle()
    return TrainingResult(
        began_ns=began_ns, ready_ns=ready_ns, ended_ns=(yield now()),
        iterations=tuple(ppo.iterations), runner_failures=group.failures, policy_lag=0.0,
    )  # fmt: skip


def start_learners(config: AlgorithmConfig) -> Script:
    """Remote learners, all there; [] if the driver updates."""
    resources = {"CPU": config.num_cpus_per_learner, "GPU": config.num_gpus_per_learner}
    kind = ActorClass(cls=Learner, resources=resources)
    learners: list[ActorHandle] = []
    while len(learners) < config.num_learners:
        learners.append((yield from kind.remote(config)))
    refs: list[Ref] = []
    for learner in learners:
        refs += yield learner.call("get_weights")
    yield get(refs)
    yield drop(*refs)
    if not learners:
        yield compute(config.costs.import_core_s)
    return learners


class _Ppo:
    def __init__(
        self,
        process: CoreProcess,
        config: AlgorithmConfig,
        group: EnvRunnerGroup,
        learners: Sequence[ActorHandle],
    ) -> None:
        self._process = process
        self._config = config
        self._group = group
        self._learners = learners
        self._seq_no = 0
        self._weights: Ref | None = None
        self.iterations: list[Iteration] = []

    def iteration(self) -> Script:
        """One ``training_step``, and a probe of runners that failed."""
        began_ns = yield now()
        steps, dropped, episodes = yield from self._sample()
        sampled_ns = yield now()
        if steps:
            yield from self._update(steps)
        updated_ns = yield now()
        if steps:
            yield from self.sync()
        yield drop(*episodes)
        synced_ns = yield now()
        assert self._weights is not None, "an iteration before the first weights were sent"
        yield from self._group.restore((self._seq_no, self._weights))
        self.iterations.append(
            Iteration(
                began_ns=began_ns, ended_ns=(yield now()), env_steps_sampled=steps + dropped,
                env_steps_trained=steps, env_steps_dropped=dropped,
                sample_s=(sampled_ns - began_ns) / 1e9, learn_s=(updated_ns - sampled_ns) / 1e9,
                sync_s=(synced_ns - updated_ns) / 1e9,
            )
        )  # fmt: skip
        return self.iterations[-1]

    def _sample(self) -> Script:
        """(env steps, env steps that came too late, references to episodes)."""
        config, group = self._config, self._group
        steps = dropped = 0
        episodes: list[Ref] = []
        while steps < config.train_batch_size and group.num_healthy:
            asked: dict[Ref, int] = {}
            for i, runner in enumerate(group.runners):
                if group.healthy[i]:
                    refs = yield runner.call("sample")
                    asked[refs[0]] = i
            ready = yield wait(
                list(asked), len(asked), timeout_ns=round(config.sample_timeout_s * 1e9)
            )
            came = 0
            for (ref, i), is_there in zip(asked.items(), ready, strict=True):
                yield spend(round(config.costs.request_s * 1e9))
                if not is_there:
                    dropped += config.sample_steps
                    yield drop(ref)
                    continue
                values = yield get([ref])
                if died(values):
                    group.failed(i)
                    yield drop(ref)
                    continue
                came += values[0].data[0]
                episodes.append(ref)
            if not came:
                break
            steps += came
        return steps, dropped, episodes

    def _update(self, steps: int) -> Script:
        config = self._config
        if not self._learners:
            size_bytes = steps * config.env.observation_bytes
            yield compute(size_bytes * config.costs.episode_core_s_per_byte)
            yield sleep(round(config.update_s(steps) * 1e9))
            return
        share = steps * config.env.observation_bytes // len(self._learners)
        refs: list[Ref] = []
        kept: list[Ref] = []
        for learner in self._learners:
            kept.append((yield put(Payload(share))))
            refs += yield learner.call("update", steps, kept[-1])
        yield get(refs)
        yield drop(*refs, *kept)

    def sync(self) -> Script:
        """Weights to all healthy runners; nobody waits for them to arrive."""
        self._seq_no += 1
        if self._weights is not None:
            yield drop(self._weights)
        if self._learners:
            yield from self._learners[0].ask("get_weights")
        self._weights = yield put(Payload(self._config.model.weights_bytes))
        for i, runner in enumerate(self._group.runners):
            if self._group.healthy[i]:
                refs = yield runner.call("set_weights", self._seq_no, self._weights)
                yield drop(*refs)
