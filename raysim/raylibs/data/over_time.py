"""Executions over time: what each operator makes, queues and may use, and when it is held back.

Real counterpart: the Ray Data panels of the dashboard (``data_output_rows``,
``data_internal_inqueue_bytes``...), and ``ds.stats()`` for the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysim.raylibs.charts import Bar, Chart, Line, edges, middles
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.raylibs.data.stats import ExecutionStats

REASONS = ("", "no CPUs or GPUs left for it", "object store budget spent", "queue behind it full")
_SPENT = 1e15
"""A budget of so many bytes is none: without a limit Ray's is infinite."""


class Look(NamedTuple):
    """At one operator, as the executor's step ends."""

    rows_out: float
    bytes_out: float
    queued_bytes: float
    """Blocks that wait for it."""
    tasks: float
    store_bytes: float
    budget_bytes: float
    """Of the store, that it may use beyond that; -1: no budget."""
    held_back: float
    """Blocks wait, and this one of ``REASONS`` keeps it from starting a task; 0: nothing."""


def look_at(op: Any, executor: Any) -> Look:
    """What the loop knows of an operator now."""
    manager, waiting = executor.manager, op.links.waiting
    budget = manager.budgets.get(op.name)
    held = waiting and not op.finished and not executor.backpressure.can_submit(op)
    reason = _reason(op, executor) if held else 0
    used = manager.usages.get(op.name)
    limited = budget is not None and budget.store < _SPENT
    return Look(
        rows_out=op.metrics.rows_out, bytes_out=op.metrics.bytes_out,
        queued_bytes=sum(b.links.out_bytes for b in op.links.inputs) + op.internal[1],
        tasks=len(op.tasks), store_bytes=used.store if used is not None else 0.0,
        budget_bytes=budget.store if limited else -1.0, held_back=float(reason),
    )  # fmt: skip


def _reason(op: Any, executor: Any) -> int:
    """Which policy says no, in the order they are asked."""
    budget = executor.manager.budgets.get(op.name)
    if budget is not None and not op.per_task()._replace(store=0.0).fits(budget):
        return 1
    return 2 if not executor.manager.can_submit(op) else 3


def charts_of(executions: Sequence[ExecutionStats]) -> tuple[Chart, ...]:
    """Of all epochs, one after the other."""
    played = [e for e in executions if len(e.looks) > 1]
    if not played:
        return ()
    names = list(dict.fromkeys(op.name for e in played for op in e.operators if op.tasks))
    return (
        Chart(key="rows", title="Rows out of each operator", unit="per_s",
              lines=tuple(Line(name=n, points=tuple(_rates(played, n, 0))) for n in names)),
        Chart(key="bytes", title="Bytes out of each operator", unit="bytes_per_s",
              lines=tuple(Line(name=n, points=tuple(_rates(played, n, 1))) for n in names)),
        Chart(key="tasks", title="Tasks that run", lines=_gauges(played, names, 3)),
        Chart(key="queued", title="Bytes that wait for each operator", unit="bytes",
              about="In its input queues.", lines=_gauges(played, names, 2)),
        Chart(key="store", title="Object store of each operator", unit="bytes",
              about="As the driver estimates it: generators' buffers, and blocks it has put out.",
              lines=_gauges(played, names, 4)),
        Chart(key="budget", title="What each operator may still use of the object store",
              unit="bytes", about="Its budget; at zero it takes and starts nothing.",
              lines=_gauges(played, names, 5)),
        Chart(key="backpressure", title="Backpressure", bars=tuple(_held(played, names)),
              about="When blocks waited for an operator and this kept it from starting a task."),
    )  # fmt: skip


def _looks(execution: ExecutionStats, name: str) -> list[tuple[float, Look]]:
    at = next((i for i, op in enumerate(execution.operators) if op.name == name), None)
    if at is None:
        return []
    width = len(Look._fields)
    return [
        (t_ns / NS_PER_S, Look(*row[at * width : (at + 1) * width]))
        for t_ns, row in execution.looks
    ]


def _rates(played: Sequence[ExecutionStats], name: str, k: int) -> Iterator[tuple[float, float]]:
    """Of a counter, in equal windows of each execution."""
    windows = max(12, 120 // len(played))
    for execution in played:
        looks = _looks(execution, name)
        if not looks:
            continue
        at = edges(looks[0][0], looks[-1][0], windows)
        counted = np.interp(at, [t for t, _ in looks], [look[k] for _, look in looks])
        for middle, grown in zip(middles(at), np.diff(counted), strict=True):
            yield middle, float(grown / (at[1] - at[0]))


def _gauges(played: Sequence[ExecutionStats], names: Sequence[str], k: int) -> tuple[Line, ...]:
    found = []
    for name in names:
        looks = [row for e in played for row in _looks(e, name)]
        points = tuple((t, look[k]) for t, look in looks if look[k] >= 0)
        if points:
            found.append(Line(name=name, points=points, steps=True))
    return tuple(found)


def _held(played: Sequence[ExecutionStats], names: Sequence[str]) -> Iterator[Bar]:
    for name in names:
        for execution in played:
            looks = _looks(execution, name)
            since, reason = 0.0, 0
            for t, code in [*((t, int(look.held_back)) for t, look in looks), (_end(looks), 0)]:
                if code == reason:
                    continue
                if reason:
                    yield Bar(row=name, from_s=since, to_s=t, state=REASONS[reason])
                since, reason = t, code


def _end(looks: list[tuple[float, Look]]) -> float:
    return looks[-1][0] if looks else 0.0
