"""The report of a data job: what it came to, what binds, what would help.

Real counterpart: ``ds.stats()`` and the dashboard's Ray Data page, and what one reads out of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.raylibs.data.advice import STALLED_FRAC, Situation, warnings_of
from raysim.raylibs.data.balance import Balance
from raysim.raylibs.data.consumers import Consumed
from raysim.raylibs.data.over_time import charts_of
from raysim.raylibs.data.stats import ExecutionStats, OpStats
from raysim.raylibs.report import Input, LibraryReport, Table, Unit

METRICS: Mapping[str, Unit] = {
    "data_s": "seconds",
    "prepared_s": "seconds",
    "rows_per_s": "per_s",
    "bytes_per_s": "bytes_per_s",
    "stall_frac": "share",
    "driver_busy": "share",
}
BUSY_FRAC = 0.85
"""A loop that works so much of the time binds."""
NEAR_FRAC = 0.75
"""Of what a limit allows: what comes so near is bound by it; starts and ends take the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was played."""

    took_s: float
    prepared_s: float
    """The part of it before the consumer began: ``materialize()``."""
    consumed: tuple[Consumed, ...]
    executions: tuple[ExecutionStats, ...]

    @property
    def rows(self) -> int:
        """Of all consumers and epochs."""
        return sum(c.rows for c in self.consumed)

    @property
    def stall_frac(self) -> float:
        """Share of the consumers' time that they waited for data."""
        return self._share(sum(c.stall_s + c.first_s for c in self.consumed))

    @property
    def first_frac(self) -> float:
        """The part of it before the first batch of each epoch."""
        return self._share(sum(c.first_s for c in self.consumed))

    def _share(self, part_s: float) -> float:
        whole_s = sum(c.stall_s + c.first_s + c.busy_s for c in self.consumed)
        return part_s / whole_s if whole_s else 0.0


def report_of(outcome: Outcome, at: Situation, inputs: tuple[Input, ...] = ()) -> LibraryReport:
    """A page's worth of it."""
    trains, limits = at.trains, at.limits
    took_s = outcome.took_s
    driver_s = sum(e.driver_s for e in outcome.executions)
    out_bytes = sum(e.operators[-1].bytes_out for e in outcome.executions)
    metrics = {
        "data_s": took_s,
        "prepared_s": outcome.prepared_s,
        "rows_per_s": outcome.rows / took_s,
        "bytes_per_s": out_bytes / took_s,
        "stall_frac": outcome.stall_frac,
        "driver_busy": driver_s / took_s,
    }
    text = f"{outcome.rows:,} rows, {outcome.rows / took_s:,.0f} rows/s"
    if trains:
        text += f"; trainers waited {outcome.stall_frac:.0%} of the time for data"
    return LibraryReport(
        kind="data",
        ok=True,
        text=f"{text}.",
        metrics=metrics,
        tables=(operators(outcome.executions),),
        bound_by=_bound_by(outcome, limits, trains=trains, driver_busy=driver_s / took_s),
        would_help=_would_help(outcome, limits, trains=trains),
        warnings=warnings_of(outcome.executions, outcome.stall_frac, outcome.first_frac, at),
        inputs=(*_INPUTS, *inputs),
        simplifications=_SIMPLIFICATIONS,
        detail=_stats(outcome),
        charts=charts_of(outcome.executions),
    )


def _stats(outcome: Outcome) -> dict[str, Any]:
    """What ``ds.stats()`` says, as numbers; operators of all epochs together."""
    summed: dict[str, dict[str, Any]] = {}
    for execution in outcome.executions:
        for op in execution.operators:
            if not op.tasks:
                continue
            row = summed.setdefault(op.name, {"name": op.name, **dict.fromkeys(_COUNTED, 0)})
            for key in _COUNTED:
                row[key] += getattr(op, key)
    return {
        "operators": list(summed.values()),
        "executions": len(outcome.executions),
        "scheduling_s": sum(e.driver_s for e in outcome.executions),
        "blocked_s": sum(c.stall_s + c.first_s for c in outcome.consumed),
        "user_s": sum(c.busy_s for c in outcome.consumed),
    }


_COUNTED = ("tasks", "blocks_out", "rows_in", "rows_out", "bytes_out", "task_s", "wall_s")


def operators(executions: tuple[ExecutionStats, ...]) -> Table:
    """Of all epochs together."""
    summed: dict[str, list[OpStats]] = {}
    for execution in executions:
        for op in execution.operators:
            if op.tasks:
                summed.setdefault(op.name, []).append(op)
    rows = []
    for name, ops in summed.items():
        wall_s = sum(op.wall_s for op in ops)
        out = sum(op.rows_out for op in ops)
        rows.append(
            (
                name, sum(op.tasks for op in ops), sum(op.task_s for op in ops) / wall_s if wall_s
                else 0.0, out / wall_s if wall_s else 0.0, max(op.peak_store_bytes for op in ops),
            )
        )  # fmt: skip
    return Table(
        title="operators",
        columns=(
            ("operator", "text"), ("tasks", "count"), ("at once", "count"), ("rows/s", "per_s"),
            ("store, at most", "bytes"),
        ),
        rows=tuple((n, t, round(c, 1), round(r, 1), b) for n, t, c, r, b in rows),
    )  # fmt: skip


def _bound_by(outcome: Outcome, limits: Balance, *, trains: bool, driver_busy: float) -> str:
    """What allows the fewest rows per second, if the run came near it."""
    if driver_busy > BUSY_FRAC:
        return f"The driver's scheduling loop, busy {driver_busy:.0%} of the time."
    waits = f"first batches, {outcome.first_frac:.0%} of the time, apart"
    found: list[tuple[float, str]] = []
    if trains:
        busy = 1 - outcome.stall_frac
        text = f"The trainers: they step {busy:.0%} of the time ({waits})."
        found.append((limits.consumers_per_s, text))
    if limits.cpu_s_per_row:
        rate = limits.cpu_rows_per_s
        most = max(limits.stages, key=lambda s: s.cpu_s + s.wait_cpu_s)
        share = (most.cpu_s + most.wait_cpu_s) / limits.cpu_s_per_row
        text = f"CPUs: {limits.cpus:g} make {rate:,.0f} rows/s; {most.name} takes {share:.0%}."
        if limits.machines.doubling is not None:
            text += f" {limits.machines}."
        found.append((rate, text))
    for stage in limits.stages:
        at_once = f"{stage.name}: {stage.slots:g} at once make {stage.rows_per_s:,.0f} rows/s."
        found.append((stage.rows_per_s, at_once))
    rate, text = min(found, default=(math.inf, ""))
    first_s = sum(c.first_s for c in outcome.consumed) / max(len(outcome.consumed), 1)
    wall_s = sum(e.wall_s for e in outcome.executions) - first_s
    reached = sum(e.rows_read for e in outcome.executions) / wall_s if wall_s > 0 else 0.0
    return text if reached > NEAR_FRAC * rate else ""


def _would_help(outcome: Outcome, limits: Balance, *, trains: bool) -> tuple[str, ...]:
    wanted = limits.cpus_to_keep_up
    if not math.isfinite(wanted) or wanted <= limits.cpus:
        return ()
    if trains and outcome.stall_frac - outcome.first_frac < STALLED_FRAC:
        return ()
    who = "the trainers bind" if trains else "the slowest pool binds"
    more = wanted - limits.cpus
    return (f"{more:,.0f} CPUs more for data, which has {limits.cpus:g}: then {who}.",)


_INPUTS = (
    Input(name="driver, per block", value="0.5 ms", basis="assumed",
          source="Python of Ray Data's loop: metadata, queues, metrics"),
    Input(name="driver, per task", value="1 ms", basis="assumed",
          source="Python of Ray Data's loop: selection, bundles, metrics"),
)  # fmt: skip
_SIMPLIFICATIONS = (
    "Costs of rows are as the scenario says; batches are converted within them.",
    "Usage of the object store is the driver's estimate, as in Ray.",
)
