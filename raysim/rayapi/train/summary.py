"""What a trainer's run says of its steps: time, throughput, memory of a GPU, what did not fit.

Real counterpart: what a user reads off logs, ``nvidia-smi`` and a profiler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from raysim.raylibs.report import Cell, Input, LibraryReport, Table
from raysim.raylibs.train.host_threads import too_few_threads
from raysim.units import GIB, to_seconds

if TYPE_CHECKING:
    from raysim.rayapi.shapes.cpu_steps import CpuShared
    from raysim.rayapi.shapes.prediction import Prediction
    from raysim.rayapi.shapes.shared import Shared
    from raysim.training.plan import TrainingPlan

COLLATE_BYTES_PER_S = 5e9
"""One core's copy of samples into a batch, and out of a loader process (assumed: memcpy)."""
LEAST_SHARE = 0.005
"""Of a step or of memory: what is less is not shown."""
SIMPLIFICATIONS = (
    "The first step of each role is traced on shapes, later ones are not run: the loss is nan.",
    "All ranks meet once per optimizer step, which takes what the training tower predicts.",
    "Python of a training loop costs no time but what it declares; its operators and batches do.",
)
SPREAD = (
    "DTensor: collectives are torch's own, each waited for where it is called; its Python costs "
    "the host the same for every operator; sending initial parameters around takes no time."
)


CPU_SIMPLIFICATIONS = (
    "torch really computes; a step takes the tower's time of one core of the catalog's cpu-rank.",
    "User code in a training loop costs no time but what it declares.",
)


def with_training(report: LibraryReport, shared: Shared) -> LibraryReport:
    """The run's report with what its steps came to."""
    if shared.too_large is not None and not report.ok:
        found, need = shared.too_large, shared.too_large.peak_bytes
        whose = f"{found.fullest_gpu or 'a GPU'}'s"
        peak = found.peak_bytes / found.capacity_bytes
        have = found.capacity_bytes
        if peak <= 1:
            whose, need, have = "a node's", found.host.peak_bytes, found.host.capacity_bytes
        text = f"does not fit: the step needs {need / GIB:.1f} GiB of {whose} {have / GIB:.1f} GiB"
        return replace(
            report, ok=False, text=f"{text}; {report.text}",
            metrics={**report.metrics, "gpu_mem_peak": peak},
        )  # fmt: skip
    if not shared.steps:
        return report
    found, _ = max(shared.steps.values(), key=lambda each: each[1])
    step_s, fullest, per_step = to_seconds(found.step_ns), found, samples(found)
    rows = tuple(_row(each, count) for each, count in _by_plan(shared))
    alike = len(rows) == len(shared.paces.rounds) == 1  # but for what the script does beside
    if shared.several and not alike:  # an optimizer's, and all others' until its next
        step_s = to_seconds(shared.paces.round_ns or found.step_ns)
        fullest = _fullest(shared.steps.values())
    elif _varies(steps := _of_one_kind(shared)):
        found, step_s, per_step = _mean(steps)
        fullest = _fullest(steps)
        what, share = _what(found), fullest.peak_bytes / fullest.capacity_bytes
        count = sum(n for _, n in steps)
        own = what, count, step_s, per_step / step_s, fullest.peak_bytes, share
        rows = own, *(row for row in rows if row[0] != what)
    metrics = {
        **report.metrics, "step_seconds": step_s, "gpu_mem_peak_bytes": float(fullest.peak_bytes),
        "gpu_mem_peak": fullest.peak_bytes / fullest.capacity_bytes,
        "gpu_mem_allocated_bytes": float(fullest.allocated_bytes),
        "gpu_mem_reserved_bytes": float(fullest.reserved_bytes),
        "samples_per_s": per_step / step_s,
    }  # fmt: skip
    table = Table(
        title="Training steps",
        columns=(
            ("what", "text"), ("steps", "count"), ("step", "seconds"), ("samples", "per_s"),
            ("GPU memory", "bytes"), ("share", "share"),
        ),
        rows=rows,
    )  # fmt: skip
    tables = (table, _where(found), *_gpus(fullest), _memory(fullest), *report.tables)
    inputs = (
        *report.inputs,
        Input(name="step", value=step_s, basis="assumed",
              source="the training tower's prediction for the traced model"),
        Input(name="collating", value=COLLATE_BYTES_PER_S, basis="assumed",
              source="bytes/s of one core that copies samples into a batch"),
    )  # fmt: skip
    few = too_few_threads(found.outcome)
    return replace(
        report, metrics=metrics, tables=tables, inputs=inputs,
        warnings=report.warnings if few is None else (*report.warnings, few),
        simplifications=(
            *report.simplifications, *SIMPLIFICATIONS,
            *([SPREAD] if any(p.plan.mesh.tp > 1 for p, _ in shared.steps.values()) else []),
        ),
    )  # fmt: skip


def _by_plan(shared: Shared) -> Iterator[tuple[Prediction, int]]:
    """Steps under each plan: how most of them were, and how many there were.

    They may differ in what the script does beside: a first one, those that log.
    """
    groups: dict[int, list[tuple[Prediction, int]]] = {}
    plans: list[TrainingPlan] = []
    for found, count in shared.steps.values():
        at = next((i for i, plan in enumerate(plans) if plan == found.plan), len(plans))
        plans += [found.plan] * (at == len(plans))
        groups.setdefault(at, []).append((found, count))
    for group in groups.values():
        yield max(group, key=lambda each: each[1])[0], sum(count for _, count in group)


_Steps = Collection[tuple["Prediction", int]]
"""With how many there were of each."""


def _of_one_kind(shared: Shared) -> _Steps:
    """Those of the model that most steps trained."""
    kinds: dict[str, list[tuple[Prediction, int]]] = {}
    for found, count in shared.steps.values():
        kinds.setdefault(_what(found), []).append((found, count))
    return max(kinds.values(), key=lambda steps: sum(count for _, count in steps))


def _varies(steps: _Steps) -> bool:
    """Whether none of them stands for most, as where each batch has a length of its own."""
    roles = Counter[tuple[int, int]]()
    for found, count in steps:
        roles[id(found.plan.model), found.plan.micro_batch] += count
    return 2 * max(roles.values()) < roles.total() or any(found.instead for found, _ in steps)


def _mean(steps: _Steps) -> tuple[Prediction, float, float]:
    """The one nearest to the mean of those that were played, the mean's seconds and samples."""
    count = sum(n for _, n in steps)
    mean_ns = sum(found.step_ns * n for found, n in steps) / count
    played = [found for found, _ in steps if not found.instead] or [found for found, _ in steps]
    nearest = min(played, key=lambda found: abs(found.step_ns - mean_ns))
    return (
        nearest,
        to_seconds(round(mean_ns)),
        sum(samples(found) * n for found, n in steps) / count,
    )


def _fullest(steps: Collection[tuple[Prediction, int]]) -> Prediction:
    return max((found for found, _ in steps), key=lambda found: found.peak_bytes)


def with_cpu_training(report: LibraryReport, shared: CpuShared) -> LibraryReport:
    """The same of ranks on CPUs, which have no memory of their own to fill."""
    if not shared.steps:
        return report
    found, _ = max(shared.steps.values(), key=lambda each: each[1])
    step_s = to_seconds(found.step_ns)
    table = Table(
        title="Training steps",
        columns=(("what", "text"), ("steps", "count"), ("step", "seconds"), ("samples", "per_s")),
        rows=tuple(
            (
                f"{each.plan.model.name}, {each.plan.engine_label}, {each.plan.mesh.world} CPUs",
                count, to_seconds(each.step_ns), samples(each) / to_seconds(each.step_ns),
            )
            for each, count in shared.steps.values()
        ),
    )  # fmt: skip
    step = Input(
        name="step", value=step_s, basis="assumed",
        source="the training tower's prediction for the traced model on the catalog's cpu-rank",
    )  # fmt: skip
    return replace(
        report,
        metrics={
            **report.metrics, "step_seconds": step_s, "samples_per_s": samples(found) / step_s
        },
        tables=(table, *report.tables), inputs=(*report.inputs, step),
        simplifications=(*report.simplifications, *CPU_SIMPLIFICATIONS),
    )  # fmt: skip


def _where(found: Prediction) -> Table:
    """Parts of the slowest rank's step, as the tower accounts for them."""
    whole = found.outcome.breakdown
    return Table(
        title="A step of the slowest rank",
        columns=(("part", "text"), ("time", "seconds"), ("share", "share")),
        rows=tuple(
            (name.replace("_", " "), to_seconds(ns), ns / whole.step_ns)
            for name, ns in sorted(whole.parts_ns.items(), key=lambda part: -part[1])
            if ns > LEAST_SHARE * whole.step_ns
        ),
    )


def _gpus(found: Prediction) -> Iterator[Table]:
    """What each of one process's GPUs holds at its peak."""
    if found.gpus:
        sizes = zip(found.gpus, (m.peak_bytes for m in found.outcome.memory), strict=True)
        yield Table(
            title="GPUs of the process, of which one works at a time",
            columns=(("GPU", "text"), ("memory", "bytes"), ("share", "share")),
            rows=tuple((gpu, size, size / found.capacity_bytes) for gpu, size in sizes),
        )


def _memory(found: Prediction) -> Table:
    """What the fullest GPU holds at its peak."""
    held = {
        **found.outcome.fullest.by_category, "models that are not trained": found.beside_bytes,
        "tensors of the script": found.script_bytes,
    }  # fmt: skip
    return Table(
        title=f"Memory of {found.fullest_gpu or 'the fullest GPU'} at its peak",
        columns=(("of", "text"), ("memory", "bytes"), ("share", "share")),
        rows=tuple(
            (name.replace("_", " "), float(size), size / found.capacity_bytes)
            for name, size in sorted(held.items(), key=lambda part: -part[1])
            if size > LEAST_SHARE * found.peak_bytes
        ),
    )


def samples(found: Prediction) -> float:
    """Of one optimizer step, over all ranks."""
    return float(found.plan.samples_per_step)


def _what(found: Prediction) -> str:
    plan = found.plan
    degrees = ("cp", plan.mesh.cp), ("tp", plan.mesh.tp)
    spread = "".join(f"{name} {ranks}, " for name, ranks in degrees if ranks > 1)
    return f"{plan.model.name}, {plan.engine_label}, {spread}{plan.mesh.world} GPUs"


def _row(found: Prediction, count: int) -> tuple[Cell, ...]:
    step_s, share = to_seconds(found.step_ns), found.peak_bytes / found.capacity_bytes
    return _what(found), count, step_s, samples(found) / step_s, found.peak_bytes, share
