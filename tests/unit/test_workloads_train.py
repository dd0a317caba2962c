"""Whole training jobs: counting steps, evaluation, checkpoints, start-up, what would help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.training.memory.need import memory_need
from raysim.training.settings.deepspeed import OffloadOptimizer
from raysim.training.settings.parallel import Mesh
from raysim.workloads.startup import startup_phases
from raysim.workloads.train_job import CheckpointSettings, DataSettings, TrainJob
from raysim.workloads.train_run import JobOutcome, feed_of, play_job
from raysim.workloads.whatif import faster, quick_step_s, smallest_fit
from tests.training_parts import cluster, llama, plan, play

GPU = catalog.gpu("H100-SXM-80GB")


def outcome(**options: Any) -> JobOutcome:
    job = TrainJob(name="train", plan=options.pop("plan", None) or plan(), **options)
    return play_job(job, cluster(1), Simulation())


def test_an_epoch_rounds_up_per_rank_and_keeps_the_last_batch() -> None:
    """1,001 samples over 8 ranks are 126 each, 63 batches of 2, 32 steps of 2 micro-batches."""
    found = outcome(epochs=3, data=DataSettings(train_samples=1001))
    assert found.steps_per_epoch == 32
    assert found.steps == 96
    assert found.training_s == pytest.approx(96 * found.step_s)


def test_the_whole_run_is_the_sum_of_its_parts() -> None:
    found = outcome(
        epochs=2,
        data=DataSettings(train_samples=800, eval_samples=320, eval_batch_per_gpu=4),
        checkpoint=CheckpointSettings(every_epoch=True),
    )
    assert found.evaluations == found.checkpoints == 2
    assert found.total_s == pytest.approx(
        found.startup_s
        + found.steps * found.step_s  # type: ignore[operator]
        + 2 * found.evaluation_s
        + 2 * found.checkpoint.seconds
    )
    assert found.epoch_s == pytest.approx(
        found.steps_per_epoch * found.step_s  # type: ignore[operator]
        + found.evaluation_s
        + found.checkpoint.seconds
    )


def test_evaluation_is_cheaper_than_training_on_as_many_samples() -> None:
    found = outcome(epochs=1, data=DataSettings(train_samples=3200, eval_samples=3200))
    assert 0 < found.evaluation_s < 0.6 * found.training_s  # type: ignore[operator]


def test_checkpoints_by_time_and_by_steps() -> None:
    by_steps = outcome(steps=1000, checkpoint=CheckpointSettings(every_steps=300))
    assert by_steps.checkpoints == 3
    by_time = outcome(steps=1000, checkpoint=CheckpointSettings(every_s=99.5 * by_steps.step_s))
    assert by_time.checkpoints == 10


def test_a_job_without_a_length_has_steps_but_no_end() -> None:
    found = outcome()
    assert found.step_s > 0
    assert found.total_s is None
    assert found.epoch_s is None


def test_slow_samples_bind_the_step() -> None:
    """2 samples of 100 ms in the training process: at least 200 ms per micro-batch."""
    slow = outcome(data=DataSettings(cpu_seconds_per_sample=0.1))
    assert slow.step_s >= 2 * 2 * 0.1
    assert slow.step.breakdown.parts_ns["data_wait"] >= 0.38e9
    four = outcome(data=DataSettings(cpu_seconds_per_sample=0.1, loader_workers=4))
    assert four.step_s == pytest.approx(slow.step_s / 4, rel=0.2)


def test_feed_splits_loading_over_workers() -> None:
    data = DataSettings(cpu_seconds_per_sample=0.01, loader_workers=5, bytes_per_sample=100)
    assert feed_of(data, 10).loader_s == pytest.approx(0.02)
    assert feed_of(data, 10).host_s == 0
    assert feed_of(data, 10).copy_bytes == 1000
    assert feed_of(replace(data, loader_workers=0), 10).host_s == pytest.approx(0.1)


def test_cluster_without_gpus_is_the_users_error() -> None:
    bare = ClusterSpec(groups=(NodeGroup(name="cpu", node=catalog.node("cpu-32"), count=2),))
    job = TrainJob(name="train", plan=plan())
    with pytest.raises(ScenarioError, match="needs a cluster with GPUs"):
        play_job(job, bare, Simulation())


def test_startup_builds_the_model_on_every_worker() -> None:
    small, large = (
        startup_phases(plan(llama(layers=n)), catalog.node("hgx-h100-8"), 8) for n in (2, 8)
    )
    by_name = {p.name: p.seconds for p in small}
    assert by_name["imports"] > 0
    assert sum(p.seconds for p in large) > sum(p.seconds for p in small)
    ddp = startup_phases(plan(engine="ddp"), catalog.node("hgx-h100-8"), 8)
    assert {p.name: p.seconds for p in ddp}["engine"] == 0


def test_quick_step_agrees_with_the_full_simulation() -> None:
    p = plan(stage=2, gradient_accumulation_steps=6)
    full = play(p).steady_step_ns / 1e9
    assert quick_step_s(p, cluster()) == pytest.approx(full, rel=0.01)


def test_faster_finds_that_checkpointing_costs_time() -> None:
    p = plan(stage=3, activation_checkpointing="full", micro_batch=16)
    base = play(p).steady_step_ns / 1e9
    effects = faster(p, cluster(), GPU.memory_bytes, step_s=base, peak_bytes=0)
    best = {e.change.change: e.step_delta_frac for e in effects}
    assert best["activation_checkpointing: none"] < -0.1  # type: ignore[operator]
    deltas = [e.step_delta_frac for e in effects]
    assert deltas == sorted(deltas)  # type: ignore[type-var]
    assert all(e.fits for e in effects)


def test_faster_leaves_out_what_does_not_fit() -> None:
    p = plan(stage=3, activation_checkpointing="full", micro_batch=64)
    peak = play(p).fullest.peak_bytes
    changes = {e.change.change for e in faster(p, cluster(), peak, step_s=1.0, peak_bytes=peak)}
    assert "activation_checkpointing: none" not in changes


def test_smallest_fit_prefers_one_change() -> None:
    p = plan(engine="ddp", precision="fp32", micro_batch=64, gradient_accumulation_steps=1)
    peak = play(p).fullest.peak_bytes
    effects = smallest_fit(p, cluster(), peak - 1)
    assert effects
    assert all(e.fits and e.peak_bytes < peak for e in effects)
    assert all(" + " not in e.change.text for e in effects)


def test_smallest_fit_combines_when_no_single_change_does() -> None:
    p = plan(engine="ddp", precision="fp32", micro_batch=64, gradient_accumulation_steps=1)
    alone = [
        replace(p, activation_checkpointing="full"),
        replace(p, micro_batch=1, gradient_accumulation_steps=64),
    ]
    limit = min(memory_need(one, cluster())[0] for one in alone) - 2**20
    (effect,) = smallest_fit(p, cluster(), limit)
    assert effect.fits
    assert effect.peak_bytes <= limit
    assert " + " in effect.change.text


def test_nothing_fits_is_an_empty_answer() -> None:
    assert smallest_fit(plan(engine="ddp"), cluster(), 1 << 20) == []


def test_too_little_main_memory_does_not_fit() -> None:
    zero = {"offload_optimizer": OffloadOptimizer(device="cpu")}
    p = plan(llama(layers=8, hidden=2048), stage=2, zero=zero, mesh=Mesh(dp=1))
    node = replace(catalog.node("hgx-h100-8"), memory_bytes=8 * 2**30)
    small = ClusterSpec(groups=(NodeGroup(name="gpu", node=node, count=1),))
    found = play_job(TrainJob(name="train", plan=p), small, Simulation())
    assert found.step.fullest.peak_bytes < GPU.memory_bytes
    assert not found.fits
