"""Traps of Ray Train that a run walks into, from its settings and from what it did."""

from __future__ import annotations

from collections.abc import Iterator

from raysim.raylibs.nodes import Nodes, lacking
from raysim.raylibs.train.policies import possible_workers
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.warnings import PlannerWarning
from raysim.units import to_seconds

MANY_CHECKPOINTS = 10
LARGE_BYTES = 1e11
"""Of all checkpoints together: below, nobody minds keeping them."""
NOTICEABLE_SHARE = 0.01
"""Of the wall time."""


def never_fits(spec: TrainerSpec, nodes: Nodes) -> PlannerWarning | None:
    """The fewest workers do not fit the cluster at its largest."""
    scaling = spec.scaling_config
    fits = possible_workers(scaling, nodes)
    if fits >= scaling.min_workers:
        return None
    each = ", ".join(f"{n:g} {name}" for name, n in scaling.resources.items())
    patience_s = spec.defaults.worker_group_start_timeout_s
    fix = f"Set num_workers to {fits} at most, ask for less per worker, or add nodes."
    missing = lacking(scaling.resources, nodes)
    if missing:
        fix = (
            f"No node has any {' or '.join(missing)}: ask for less per worker, or say machines "
            "that have it (--cluster FILE, with `nodes: 1` and `node: hgx-h100-8` for GPUs)."
        )
    return PlannerWarning(
        code="placement-group-never-fits",
        cause=f"{scaling.min_workers} workers of {each} each do not fit the cluster, where {fits} "
        f"do: Ray Train asks for the placement group again every {patience_s:g} s, for ever.",
        fix=fix,
    )


def advice(
    spec: TrainerSpec, record: RunRecord, nodes: Nodes, *, spot: bool = False
) -> Iterator[PlannerWarning]:
    """Of a run that was played."""
    never = never_fits(spec, nodes)
    if never is not None:
        yield never
    yield from _reporting(spec, record)
    yield from _failing(spec, nodes, spot=spot)
    yield from _keeping(spec, record)
    yield from _waiting(spec, record)
    scaling = spec.scaling_config
    reads = spec.datasets or (spec.function.loop is not None and spec.function.loop.dataset)
    if scaling.resources.get("GPU") and not scaling.resources.get("CPU") and reads:
        yield PlannerWarning(
            code="gpu-workers-without-cpu",
            cause="A worker holds a GPU and no CPU, so Ray Data plans its tasks on every CPU of "
            "the GPU nodes, those that the workers' own threads use included.",
            fix='Give workers CPUs: resources_per_worker={"GPU": 1, "CPU": 4}, or keep Ray Data '
            "off the GPU nodes.",
        )


def _reporting(spec: TrainerSpec, record: RunRecord) -> Iterator[PlannerWarning]:
    loop, attempts = spec.function.loop, record.attempts
    if loop is None or loop.report_every is None or not attempts:
        return
    parts, wall_ns = record.parts_ns(), max(1, record.end_ns - record.begin_ns)
    waits_s = to_seconds(parts["reports"])
    between_s = loop.report_every * loop.step.seconds(attempts[-1].world_size)
    poll_s = spec.defaults.health_check_interval_s
    if between_s < poll_s:
        every = -(-poll_s * loop.report_every // between_s) if between_s else 1
        yield PlannerWarning(
            code="report-faster-than-poll",
            cause=f"report() is called every {between_s:.2g} s, but the controller collects one "
            f"report per worker each {poll_s:g} s: steps wait {waits_s:.0f} s for it.",
            fix=f"Report every {every:.0f} steps or more.",
        )
        return
    asynchronous = loop.checkpoint is not None and loop.checkpoint.mode == "ASYNC"
    if asynchronous and parts["reports"] > NOTICEABLE_SHARE * wall_ns:
        yield PlannerWarning(
            code="report-waits-for-upload",
            cause="A report of metrics waits until the checkpoint before it is uploaded, though "
            f"that is asynchronous: {waits_s:.0f} s of this run.",
            fix="Report metrics with the checkpoints only, or with "
            "checkpoint_upload_mode=CheckpointUploadMode.ASYNC.",
        )


def _failing(spec: TrainerSpec, nodes: Nodes, *, spot: bool) -> Iterator[PlannerWarning]:
    scaling, failure = spec.scaling_config, spec.run_config.failure_config
    if spot and failure.max_failures == 0:
        yield PlannerWarning(
            code="no-failures-allowed-on-spot",
            cause="Nodes are taken back, and max_failures is 0: one that goes without a notice, "
            "or a rank that fails with it, ends the run.",
            fix="Set FailureConfig(max_failures=-1).",
        )
    if not scaling.elastic:
        return
    largest = max(nodes, key=lambda node: possible_workers(scaling, [node]), default={})
    rest = list(nodes)
    if largest in rest:
        rest.remove(largest)
    left = possible_workers(scaling, rest)
    if left < scaling.min_workers:
        yield PlannerWarning(
            code="elastic-minimum-too-high",
            cause=f"One node less leaves room for {left} workers, fewer than the "
            f"{scaling.min_workers} that this elastic run needs: it waits for another node.",
            fix=f"Set num_workers to ({max(1, left)}, {scaling.max_workers}).",
        )


def _waiting(spec: TrainerSpec, record: RunRecord) -> Iterator[PlannerWarning]:
    waited_s = to_seconds(record.parts_ns()["waiting"])
    failed = record.states[-1:] and record.states[-1][1] == "ERRORED"
    if not (failed and record.attempts and waited_s >= spec.patience_s):
        return
    yield PlannerWarning(
        code="lost-nodes-never-replaced",
        cause=f"After the last loss too few nodes were left for {spec.scaling_config.min_workers} "
        f"workers; nobody brought another in {waited_s / 3600:.0f} h.",
        fix="Let an autoscaler or operator replace nodes, keep spare ones, or give num_workers as "
        "the fewest and the most.",
    )


def _keeping(spec: TrainerSpec, record: RunRecord) -> Iterator[PlannerWarning]:
    nodes = max((len(attempt.nodes) for attempt in record.attempts), default=0)
    if record.saved and spec.run_config.storage is None and nodes > 1:
        yield PlannerWarning(
            code="checkpoints-on-local-disks",
            cause=f"Checkpoints of {nodes} nodes go to each node's own disk: what a lost node held "
            "is gone, and the others cannot read it.",
            fix="Set checkpoint.storage: a bucket or a shared file system.",
        )
    keep = spec.run_config.checkpoint_config.num_to_keep
    if keep is not None or len(record.saved) < MANY_CHECKPOINTS:
        return
    if record.stored_bytes < LARGE_BYTES:
        return
    yield PlannerWarning(
        code="all-checkpoints-kept",
        cause=f"num_to_keep is None: {len(record.saved)} checkpoints take "
        f"{record.stored_bytes / 1e12:.1f} TB at the end.",
        fix="Set CheckpointConfig(num_to_keep=3), say.",
    )
