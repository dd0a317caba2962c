"""What FSDP's own settings would free or save, beside a job as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.training.memory.need import memory_need
from raysim.training.plan import TrainingPlan
from raysim.training.settings.fsdp import FsdpSettings
from raysim.units import to_seconds
from raysim.workloads.whatif import faster, quick_step_s, smallest_fit
from raysim.workloads.whatif_fsdp import exchanging_less, holding_less
from tests.training_parts import cluster, plan, play


def fsdp(*, accumulation: int = 4, **said: Any) -> TrainingPlan:
    return plan(
        engine="fsdp", fsdp=FsdpSettings(**said), gradient_accumulation_steps=accumulation,
        activation_checkpointing="full",
    )  # fmt: skip


def test_whole_gradients_of_an_accumulating_job_are_what_goes_first() -> None:
    job = fsdp()
    every = replace(job, fsdp=replace(job.fsdp, sync_every_micro_batch=True))
    kept, reduced = (memory_need(p, cluster())[0] for p in (job, every))
    limit = reduced + (kept - reduced) // 8
    fitting = {e.change.change: e for e in smallest_fit(job, cluster(), limit)}
    assert fitting["fsdp.sync_every_micro_batch: true"].peak_bytes <= limit < kept


def test_what_was_freed_for_nothing_would_help_when_kept() -> None:
    job = fsdp(sync_every_micro_batch=True)
    outcome = play(job)
    step_s = to_seconds(outcome.steady_step_ns)
    peak = outcome.fullest.peak_bytes
    found = {e.change.change: e for e in faster(
        job, cluster(), 80 << 30, step_s=step_s, peak_bytes=peak
    )}  # fmt: skip
    for change in ("fsdp.sync_every_micro_batch: false", "fsdp.reshard_after_forward: false"):
        effect = found[change]
        assert effect.step_delta_frac is not None
        assert effect.step_delta_frac < 0
        assert effect.peak_bytes >= peak
        assert quick_step_s(effect.change.plan, cluster()) < step_s


@pytest.mark.parametrize(
    ("said", "less", "faster_by"),
    [
        ({}, [], ["fsdp.reshard_after_forward: false"]),
        ({"reshard_after_forward": False}, ["fsdp.reshard_after_forward: true"], []),
        ({"version": 1}, [], ["fsdp.sharding_strategy: SHARD_GRAD_OP"]),
        (
            {"version": 1, "sharding_strategy": "_HYBRID_SHARD_ZERO2", "replicas": 2},
            ["fsdp.sharding_strategy: HYBRID_SHARD", "fsdp.replicate: 1"],
            [],
        ),
        (
            {"version": 1, "sharding_strategy": "NO_SHARD"},
            ["fsdp.sharding_strategy: FULL_SHARD"],
            [],
        ),
    ],
)
def test_each_setting_has_its_way_back(
    said: dict[str, Any], less: list[str], faster_by: list[str]
) -> None:
    job = fsdp(accumulation=1, **said)
    assert [c.change for c in holding_less(job)] == less
    assert [c.change for c in exchanging_less(job)] == faster_by
    own = memory_need(job, cluster())[0]
    for change in holding_less(job):
        assert memory_need(replace(job, fsdp=change.fsdp), cluster())[0] <= own
