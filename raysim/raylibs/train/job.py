"""A run of Ray Train as a job: plays it, and says what it came to.

Real counterpart: the user's script around ``trainer.fit()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.over_time import charts_of as data_charts
from raysim.raylibs.data.report import operators
from raysim.raylibs.nodes import Nodes, cluster_nodes
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.train.advice import advice, never_fits
from raysim.raylibs.train.config import WITHOUT_LIMIT
from raysim.raylibs.train.controller import TrainOutcome
from raysim.raylibs.train.fit import fit
from raysim.raylibs.train.over_time import charts_of
from raysim.raylibs.train.records import PARTS, RunRecord
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.units import format_seconds, to_seconds

SAYS = {
    "steps": "steps that are kept", "data": "waiting for data",
    "checkpoints": "saving and uploading", "reports": "report() and its queue",
    "between": "the loop's own work between steps",
    "lost": "work that was lost", "startup": "first start", "detection": "until it was noticed",
    "teardown": "ending workers", "waiting": "waiting for nodes", "restart": "later starts",
    "load": "reading checkpoints",
}  # fmt: skip
HELPS = {
    "data": "more CPUs for Ray Data, or fewer GPUs per data node",
    "checkpoints": "asynchronous uploads, sharded checkpoints, or fewer of them",
    "reports": "reporting less often", "lost": "saving more often, or on notice of a preemption",
    "startup": "images with the packages in them", "detection": "nodes that give notice",
    "waiting": "nodes that stand by, or an elastic num_workers",
    "load": "reading only each rank's own part",
}  # fmt: skip
SIMPLIFICATIONS = (
    "Every step is the steady one of its group's size; elastic runs count steps of any size.",
    "Ranks copy a checkpoint into a local folder by one thread each, which its disk keeps up with.",
    "Listing and deleting checkpoints takes no time.",
)
LEAST_SHARE = 0.0005
"""Of the wall time: what is less is not shown."""
SHORTEST_SHARE = 0.02
"""Of the wall time: what is less does not bind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRun:
    """``TorchTrainer(...).fit()``."""

    spec: TrainerSpec
    samples: Callable[[int], float] | None = None
    """Tokens, or samples, of one step of a group of so many ranks."""
    spot: bool = False
    """Its nodes may be taken back."""
    inputs: tuple[Input, ...] = ()
    simplifications: tuple[str, ...] = SIMPLIFICATIONS

    kind: ClassVar[str] = "train"
    metrics: ClassVar[Mapping[str, Unit]] = {
        "seconds": "seconds", "goodput": "share", "steps_per_s": "per_s", "restarts": "count",
        "lost_s": "seconds", "checkpoint_stall_s": "seconds", "data_stall_s": "seconds",
        "report_stall_s": "seconds", "restart_s": "seconds", "stored_bytes": "bytes",
        "samples_per_s": "per_s", "start_s": "seconds", "steps_s": "seconds",
    }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:  # noqa: ARG002  (of all jobs)
        """The driver."""
        nodes = cluster_nodes(process)
        never = never_fits(self.spec, nodes)
        limit = self.spec.run_config.failure_config.controller_failure_limit
        if never is not None and limit == WITHOUT_LIMIT:
            return LibraryReport(
                kind=self.kind, ok=False, text=never.cause, metrics={}, warnings=(never,)
            )
        record = RunRecord()
        outcome = yield from fit(self.spec, record)
        if isinstance(outcome, TaskError):
            return outcome
        return self.report(outcome, nodes)

    def report(self, outcome: TrainOutcome, nodes: Nodes) -> LibraryReport:
        """What is shown."""
        record = outcome.record
        found = report_of(record, ok=outcome.ok, text=_verdict(outcome, record.kept_steps()))
        metrics, wall_s = dict(found.metrics), found.metrics["seconds"]
        if self.samples is not None and wall_s:
            done = sum(n * self.samples(size) for size, n in record.kept_by_size().items())
            metrics["samples_per_s"] = done / wall_s
        return replace(
            found, metrics=metrics, inputs=self.inputs, simplifications=self.simplifications,
            warnings=tuple(advice(self.spec, record, nodes, spot=self.spot)),
            tables=(*found.tables, _attempts(record)),
        )  # fmt: skip


def report_of(record: RunRecord, *, ok: bool, text: str) -> LibraryReport:
    """Where the time of a run went, whoever started its ranks."""
    parts = {name: to_seconds(ns) for name, ns in record.parts_ns().items()}
    wall_s = to_seconds(record.end_ns - record.begin_ns)
    metrics = {
        "seconds": wall_s, "goodput": record.goodput,
        "steps_per_s": record.kept_steps() / wall_s if wall_s else 0.0,
        "restarts": float(max(0, len(record.attempts) - 1)), "lost_s": parts["lost"],
        "checkpoint_stall_s": parts["checkpoints"], "data_stall_s": parts["data"],
        "report_stall_s": parts["reports"],
        "restart_s": sum(parts[p] for p in ("detection", "teardown", "restart", "load")),
        "stored_bytes": record.most_stored_bytes,
        "start_s": parts["startup"],
        "steps_s": parts["steps"],
    }  # fmt: skip
    worst = [p for p in sorted(HELPS, key=lambda p: -parts[p])
             if parts[p] > SHORTEST_SHARE * wall_s]  # fmt: skip
    return LibraryReport(
        kind=TrainRun.kind, ok=ok, text=text, metrics=metrics,
        tables=tuple(_tables(record, parts, wall_s)), bound_by=_bound(parts, wall_s),
        would_help=tuple(HELPS[p] for p in worst[:3]),
        detail={"states": [[to_seconds(t), s] for t, s in record.states]},
        charts=(*charts_of(record, SAYS), *data_charts(record.data)),
    )  # fmt: skip


def _verdict(outcome: TrainOutcome, kept: int) -> str:
    record = outcome.record
    world = record.attempts[-1].world_size if record.attempts else 0
    times = len(record.attempts)
    done = f"{kept} steps on {world} workers, {times} attempt{'s' * (times != 1)}"
    if outcome.ok:
        return f"{done}, {record.goodput:.1%} of the time in steps that are kept"
    error = outcome.error.message.split("\n")[0] if outcome.error is not None else ""
    return f"failed ({outcome.cause}) after {done}: {error}"


def _bound(parts: Mapping[str, float], wall_s: float) -> str:
    most = max(parts, key=lambda p: parts[p])
    share = parts[most] / wall_s if wall_s else 0.0
    return f"{SAYS[most]}: {share:.0%} of the wall time"


def _tables(record: RunRecord, parts: Mapping[str, float], wall_s: float) -> Iterator[Table]:
    yield Table(
        title="Where the time went",
        columns=(("phase", "text"), ("time", "seconds"), ("share", "share")),
        rows=tuple(
            (SAYS[p], parts[p], parts[p] / wall_s if wall_s else 0.0)
            for p in PARTS
            if parts[p] > LEAST_SHARE * wall_s
        ),
    )
    fed = operators(tuple(record.data))
    if fed.rows:
        yield replace(fed, title="Operators of the workers' data")


def _attempts(record: RunRecord) -> Table:
    begins = [a.begin_ns for a in record.attempts[1:]]
    causes = [
        next((s.cause for s in reversed(record.stops) if a.begin_ns < s.found_ns <= b), "")
        for a, b in zip(record.attempts, [*begins, record.end_ns], strict=True)
    ]
    return Table(
        title="Attempts",
        columns=(
            ("began", "text"), ("workers", "count"), ("from step", "count"), ("to step", "count"),
            ("ended by", "text"),
        ),
        rows=tuple(
            (format_seconds(to_seconds(a.begin_ns)), a.world_size, a.resume_step, a.done_step,
             cause)
            for a, cause in zip(record.attempts, causes, strict=True)
        ),
    )  # fmt: skip
