"""PPO: sample until there is a batch, update on it, send the weights; nobody works ahead.

Real counterpart: ``PPO.training_step`` (ray 2.60).
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, drop, now
from raysim.raylibs.rllib.actors import GIVE_UP_NS
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.result import Iteration, TrainingResult
from raysim.raylibs.rllib.synchronous import Synchronous


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


class Ppo(Synchronous):
    """``PPO``."""

    def _training_step(self) -> Script:
        began_ns = yield now()
        steps, added, dropped, episodes = yield from self._sample(self._config.train_batch_size)
        sampled_ns = yield now()
        if steps:
            yield from self._update(self._config.samples(steps, added))
        updated_ns = yield now()
        if steps:
            yield from self.sync()
        yield drop(*episodes)
        synced_ns = yield now()
        return Iteration(
            began_ns=began_ns, ended_ns=synced_ns, env_steps_sampled=steps + dropped,
            env_steps_trained=steps, env_steps_dropped=dropped, steps_added=added,
            sample_s=(sampled_ns - began_ns) / 1e9, learn_s=(updated_ns - sampled_ns) / 1e9,
            sync_s=(synced_ns - updated_ns) / 1e9,
        )  # fmt: skip
