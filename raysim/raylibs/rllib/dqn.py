"""DQN and SAC: sample a few steps, keep them, train on batches of what is kept, send the weights.

Real counterpart: ``DQN._training_step_new_api_stack`` (ray 2.60), which SAC has from it, and
``utils/replay_buffers``. The buffer is in the algorithm's process.

Not modelled: which items are sampled, so those too near to an episode's end that are sampled again;
eviction, which walks over all indices of a full buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, now
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.result import Iteration
from raysim.raylibs.rllib.synchronous import Synchronous


class Dqn(Synchronous):
    """``DQN``, ``SAC``."""

    def __init__(
        self, process: CoreProcess, config: AlgorithmConfig, streams: Any, name: str
    ) -> None:
        super().__init__(process, config, streams, name)
        self.env_steps_sampled = 0
        """Since the algorithm began, before a checkpoint as well."""
        self._target_updated_at = 0

    def _training_step(self) -> Script:
        config, began_ns = self._config, (yield now())
        store, train = config.round_robin
        done = Iteration(
            began_ns=began_ns, ended_ns=began_ns, env_steps_sampled=0, env_steps_trained=0,
            training_steps=0,
        )  # fmt: skip
        for _ in range(store):
            done = done + (yield from self._stored())
        if self.group.error is None and self.env_steps_sampled >= config.learning_starts:
            for _ in range(train):
                done = done + (yield from self._replayed())
            since_ns = yield now()
            yield from self.sync()
            done = replace(done, sync_s=((yield now()) - since_ns) / 1e9)
        return replace(done, ended_ns=(yield now()), training_steps=1)

    def _stored(self) -> Script:
        """One round of the runners, into the buffer."""
        config, costs, began_ns = self._config, self._config.costs, (yield now())
        steps, _, dropped, episodes = yield from self._sample(1)
        sampled_ns = yield now()
        if steps:
            fragments = config.num_envs_per_env_runner * self.group.num_healthy
            yield compute(costs.store_core_s + fragments * costs.store_fragment_core_s)
        yield drop(*episodes)
        stored_ns = yield now()
        self.env_steps_sampled += steps
        return Iteration(
            began_ns=began_ns, ended_ns=stored_ns, env_steps_sampled=steps + dropped,
            env_steps_trained=0, env_steps_dropped=dropped, training_steps=0,
            sample_s=(sampled_ns - began_ns) / 1e9, store_s=(stored_ns - sampled_ns) / 1e9,
        )  # fmt: skip

    def _replayed(self) -> Script:
        """One batch of the buffer, and an update on it."""
        config, began_ns = self._config, (yield now())
        batch, costs = config.train_batch_size, config.costs
        yield compute(costs.replay_core_s + batch * costs.replay_item_core_s)
        replayed_ns = yield now()
        if self.learners.actors and costs.ship_item_core_s:
            yield compute(batch * costs.ship_item_core_s)
        yield from self._update(batch)
        updated = self.env_steps_sampled - self._target_updated_at >= config.target_update_freq
        if updated:
            self._target_updated_at = self.env_steps_sampled
        updated_ns = yield now()
        if config.prioritized_replay:
            yield compute(batch * costs.priority_core_s)
        ended_ns = yield now()
        return Iteration(
            began_ns=began_ns, ended_ns=ended_ns, env_steps_sampled=0, env_steps_trained=batch,
            target_updates=int(updated), target_updated_at=self._target_updated_at,
            replay_s=(replayed_ns - began_ns) / 1e9, learn_s=(updated_ns - replayed_ns) / 1e9,
            prioritize_s=(ended_ns - updated_ns) / 1e9, training_steps=0,
        )  # fmt: skip
