"""Traps that a run walks into: each is said with its number and the fix, and not without cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from raysim.raylibs.train.advice import advice, never_fits
from raysim.raylibs.train.config import FailureConfig, RunConfig, ScalingConfig
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep
from raysim.raylibs.train.shards import ConstantRate
from raysim.raylibs.train.trainer import TrainerSpec
from tests.train_parts import CHECKPOINT, loop, play, trainer

NODES = [{"CPU": 16.0, "GPU": 4.0}] * 2


def said(spec: TrainerSpec, *, spot: bool = False, **how: Any) -> dict[str, str]:
    """Warnings of a run, by code."""
    record = play(spec, **how).record
    return {w.code: str(w) for w in advice(spec, record, NODES, spot=spot)}


def test_a_run_without_traps_is_told_nothing() -> None:
    assert said(trainer(loop(report_every=10), keep=2)) == {}


def test_reports_faster_than_polls_name_the_steps_between_them_that_do() -> None:
    fast = trainer(loop(step=ConstantStep(step_s=0.25), report_every=2, checkpoint_every=None))
    found = said(fast)
    assert list(found) == ["report-faster-than-poll"]
    assert "every 0.5 s" in found["report-faster-than-poll"]
    assert "Report every 8 steps or more." in found["report-faster-than-poll"]
    eighth = trainer(loop(step=ConstantStep(step_s=0.25), report_every=8, checkpoint_every=None))
    assert said(eighth) == {}


def test_reports_behind_asynchronous_uploads() -> None:
    slow = replace(CHECKPOINT, total_bytes=80e9, mode="ASYNC")
    found = said(trainer(loop(checkpoint=slow, report_every=5)))
    assert list(found) == ["report-waits-for-upload"]


@pytest.mark.parametrize(("spot", "failures", "warns"), [(True, 0, True), (True, 3, False),
                                                         (False, 0, False)])  # fmt: skip
def test_spot_nodes_without_failures_allowed(spot: bool, failures: int, warns: bool) -> None:
    spec = trainer(failures=FailureConfig(max_failures=failures))
    assert ("no-failures-allowed-on-spot" in said(spec, spot=spot)) == warns


@pytest.mark.parametrize(("least", "warns"), [(4, False), (5, True), (8, True)])
def test_an_elastic_minimum_that_one_lost_node_undoes(least: int, warns: bool) -> None:
    found = said(trainer(workers=(least, 8)))
    assert ("elastic-minimum-too-high" in found) == warns
    if warns:
        assert "Set num_workers to (4, 8)." in found["elastic-minimum-too-high"]


@pytest.mark.parametrize(
    ("every", "keep", "size", "warns"),
    [(5, None, 10e9, True), (5, 3, 10e9, False), (30, None, 10e9, False), (5, None, 1e9, False)],
)
def test_checkpoints_kept_for_ever(every: int, keep: Any, size: float, warns: bool) -> None:
    spec = trainer(
        loop(checkpoint_every=every, checkpoint=CheckpointSpec(total_bytes=size)), keep=keep
    )
    found = said(spec)
    assert ("all-checkpoints-kept" in found) == warns
    if warns:
        assert "12 checkpoints take 0.1 TB" in found["all-checkpoints-kept"]


@pytest.mark.parametrize(("workers", "warns"), [(8, True), (4, False)])
def test_checkpoints_that_only_one_node_can_read(workers: int, warns: bool) -> None:
    spec = trainer(workers=workers)
    spec = replace(spec, run_config=replace(spec.run_config, storage=None))
    found = said(spec)
    assert ("checkpoints-on-local-disks" in found) == warns


def test_gpu_workers_that_leave_their_cpus_to_ray_data() -> None:
    reads = loop(dataset=ConstantRate(batches_per_s=50.0))
    assert list(said(trainer(reads))) == ["gpu-workers-without-cpu"]
    spec = replace(
        trainer(reads),
        scaling_config=ScalingConfig(
            num_workers=8, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 2}
        ),
    )
    assert said(spec) == {}


def test_a_group_that_no_cluster_of_this_kind_holds() -> None:
    spec = TrainerSpec(
        function=trainer().function, run_config=RunConfig(),
        scaling_config=ScalingConfig(
            num_workers=8, use_gpu=True, resources_per_worker={"GPU": 1, "CPU": 8}
        ),
    )  # fmt: skip
    warning = never_fits(spec, NODES)
    assert warning is not None
    assert "where 4 do" in warning.cause
    assert "Set num_workers to 4 at most" in warning.fix
    assert never_fits(spec, NODES * 2) is None
    without = never_fits(spec, [{"CPU": 16.0}])
    assert without is not None
    assert "No node has any GPU" in without.fix
    assert "--cluster" in without.fix


def test_losses_that_nobody_makes_good() -> None:
    def lose(sim: Any, faults: Any) -> None:
        sim.at("60s", faults.kill_raylet, 1)

    spec = trainer(failures=FailureConfig(max_failures=-1), patience_s=7200.0)
    assert "nobody brought another in 2 h" in said(spec, faults=lose)["lost-nodes-never-replaced"]
