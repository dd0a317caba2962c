"""What came of an execution, operator by operator: ``ds.stats()`` as data.

Real counterpart: ``_internal/stats.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from raysim.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class OpStats:
    """Of one operator."""

    name: str
    tasks: int
    rows_in: int
    rows_out: int
    bytes_out: int
    blocks_out: int
    task_s: float
    """Submission to end, of all tasks together."""
    wall_s: float
    """First submission to last end."""
    peak_store_bytes: int
    """Of the driver's estimate of what it holds in the store."""
    peak_actors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStats:
    """Of one execution."""

    wall_s: float
    driver_s: float
    """What the loop's own code took."""
    steps: int
    peak_store_bytes: int
    store_limit_bytes: float
    dropped_rows: int
    """By an equal split."""
    operators: tuple[OpStats, ...]
    looks: tuple[tuple[int, tuple[float, ...]], ...] = field(default=(), repr=False)
    """(When, an ``over_time.Look`` of each operator), for charts."""

    @property
    def rows(self) -> int:
        """That came out."""
        return self.operators[-1].rows_out

    @property
    def rows_read(self) -> int:
        """That went in."""
        return next((op.rows_in for op in self.operators if op.tasks), 0)


def stats_of(executor: Any) -> ExecutionStats:
    """Of an execution, ended or not."""
    end_ns = executor.ended_ns or executor.process.now_ns
    return ExecutionStats(
        wall_s=(end_ns - executor.began_ns) / NS_PER_S,
        driver_s=executor.driver_ns / NS_PER_S,
        steps=executor.steps,
        peak_store_bytes=int(executor.manager.peak_bytes),
        store_limit_bytes=executor.manager.limits.store,
        dropped_rows=getattr(executor.output, "dropped_rows", 0),
        operators=tuple(_op(op) for op in executor.topology),
        looks=tuple(executor.looks.rows),
    )


def _op(op: Any) -> OpStats:
    m = op.metrics
    pool = getattr(op, "pool", None)
    wall_ns = m.last_ns - m.first_ns if m.first_ns >= 0 else 0
    return OpStats(
        name=op.name, tasks=m.tasks_finished, rows_in=m.rows_in, rows_out=m.rows_out,
        bytes_out=m.bytes_out, blocks_out=m.blocks_out, task_s=m.task_ns / NS_PER_S,
        wall_s=wall_ns / NS_PER_S, peak_store_bytes=m.peak_bytes,
        peak_actors=pool.peak if pool is not None else 0,
    )  # fmt: skip
