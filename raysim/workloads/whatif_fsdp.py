"""FSDP's settings that trade memory for exchanges: what would free memory, what would save time.

Real counterparts: ``no_sync``, ``set_requires_gradient_sync`` and Accelerate's ``sync_each_batch``,
``reshard_after_forward`` and ``ShardingStrategy``, the mesh of ``HYBRID_SHARD``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from raysim.training.plan import TrainingPlan
from raysim.training.settings.fsdp import FsdpSettings, ShardingStrategy

LEANER: dict[ShardingStrategy, ShardingStrategy] = {
    "NO_SHARD": "FULL_SHARD", "SHARD_GRAD_OP": "FULL_SHARD", "_HYBRID_SHARD_ZERO2": "HYBRID_SHARD",
}  # fmt: skip
"""Version 1: the strategy that holds less of the same parameters."""
FASTER: dict[ShardingStrategy, ShardingStrategy] = {
    "FULL_SHARD": "SHARD_GRAD_OP", "HYBRID_SHARD": "_HYBRID_SHARD_ZERO2",
}  # fmt: skip
"""Version 1: the strategy that gathers once a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FsdpChange:
    """One setting changed: how a file says it, in words, and all settings with it."""

    change: str
    text: str
    fsdp: FsdpSettings


def holding_less(plan: TrainingPlan) -> Iterator[FsdpChange]:
    """What holds less, from least to most exchanged more."""
    said = plan.fsdp
    if plan.gradient_accumulation_steps > 1 and not said.sync_every_micro_batch:
        yield _reduced(said, every=True)
    if not said.frees and said.version == 2:
        yield _resharded(said, after=True)
    elif said.version == 1 and said.sharding_strategy in LEANER:
        yield _strategy(said, LEANER[said.sharding_strategy])
    if said.replicas > 1:
        yield FsdpChange(
            change="fsdp.replicate: 1", text="sharded over all ranks",
            fsdp=replace(said, replicas=1, sharding_strategy=_over_all(said.sharding_strategy)),
        )  # fmt: skip


def exchanging_less(plan: TrainingPlan) -> Iterator[FsdpChange]:
    """What exchanges less and holds more."""
    said = plan.fsdp
    if plan.gradient_accumulation_steps > 1 and said.sync_every_micro_batch:
        yield _reduced(said, every=False)
    if said.version == 2 and said.reshard_after_forward is True:
        yield _resharded(said, after=False)
    elif said.version == 1 and said.sharding_strategy in FASTER:
        yield _strategy(said, FASTER[said.sharding_strategy])


def _reduced(said: FsdpSettings, *, every: bool) -> FsdpChange:
    return FsdpChange(
        change=f"fsdp.sync_every_micro_batch: {str(every).lower()}",
        text="gradients reduced every micro-batch" if every else "no_sync while accumulating",
        fsdp=replace(said, sync_every_micro_batch=every),
    )


def _resharded(said: FsdpSettings, *, after: bool) -> FsdpChange:
    name = f"reshard_after_forward {str(after).lower()}"
    return FsdpChange(
        change=f"fsdp.reshard_after_forward: {str(after).lower()}", text=name,
        fsdp=replace(said, reshard_after_forward=after),
    )  # fmt: skip


def _strategy(said: FsdpSettings, strategy: ShardingStrategy) -> FsdpChange:
    return FsdpChange(
        change=f"fsdp.sharding_strategy: {strategy}", text=strategy.lstrip("_"),
        fsdp=replace(said, sharding_strategy=strategy),
    )  # fmt: skip


def _over_all(strategy: ShardingStrategy) -> ShardingStrategy:
    if strategy == "HYBRID_SHARD":
        return "FULL_SHARD"
    return "SHARD_GRAD_OP" if strategy == "_HYBRID_SHARD_ZERO2" else strategy
