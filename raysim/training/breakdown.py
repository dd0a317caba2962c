"""Where a step's time went on one rank: busy kernels by kind, and gaps by what caused them.

The compute stream is either running something, or idle because of the host, a collective, a peer of
the pipeline, a copy or the data loader. The parts add up to the step exactly.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from raysim.training.executor import BY_HOST, Timeline
from raysim.training.program import COMPUTE, Kind

KERNELS = {"forward", "backward", "recompute"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Nanoseconds of one step by part; the keys are the report's."""

    step_ns: int
    parts_ns: dict[str, int]
    collective_ns: int
    """Time during which some collective ran."""

    @property
    def hidden_collectives_frac(self) -> float | None:
        """Share of collective time behind something else; None without collectives."""
        if not self.collective_ns:
            return None
        exposed = min(self.parts_ns["exposed_collectives"], self.collective_ns)
        return 1.0 - exposed / self.collective_ns


PARTS = (
    "compute", "recompute", "exposed_collectives", "pipeline_transfers", "bubble", "offload",
    "launch", "data_wait", "optimizer", "other",
)  # fmt: skip


def step_breakdown(line: Timeline, step: int) -> Breakdown:
    """Account for every nanosecond of an optimizer step on one rank."""
    begin, end = line.step_window(step)
    parts: dict[str, int] = defaultdict(int)
    ends = line.program.step_ends
    first, stop = (ends[step - 1] if step else 0), ends[step]
    ops = line.program.ops
    now = begin
    for i in range(first, stop):
        op = ops[i]
        if op.stream != COMPUTE:
            continue
        start, finish = max(line.start_ns[i], now), max(line.end_ns[i], now)
        if start > now:
            _account_gap(line, i, now, start, parts)
        _account_busy(line, i, start, finish, parts)
        now = finish
    if end > now:
        _account_tail(line, first, stop, now, end, parts)
    collective = _union(
        (line.met_ns[i], line.end_ns[i])
        for i in range(first, stop)
        if ops[i].kind == Kind.COLLECTIVE and line.end_ns[i] > begin
    )
    assert sum(parts.values()) == end - begin, f"breakdown misses time: {dict(parts)}"
    return Breakdown(
        step_ns=end - begin,
        parts_ns={key: parts.get(key, 0) for key in PARTS},
        collective_ns=collective,
    )


def _account_busy(line: Timeline, i: int, start: int, end: int, parts: dict[str, int]) -> None:
    op = line.program.ops[i]
    if op.kind in {Kind.SEND, Kind.RECV}:
        met = min(max(line.met_ns[i], start), end)
        parts["bubble"] += met - start
        parts["pipeline_transfers"] += end - met
        return
    busy = min(op.duration_ns, end - start)
    parts["launch"] += end - start - busy
    parts[_busy_part(op.category)] += busy


def _busy_part(category: str) -> str:
    if category == "recompute":
        return "recompute"
    if category in KERNELS:
        return "compute"
    return {"optimizer": "optimizer", "collective": "exposed_collectives"}.get(category, "other")


def _account_gap(line: Timeline, i: int, start: int, end: int, parts: dict[str, int]) -> None:
    """Idle before operation ``i``: blame what it waited for, or what held the host up."""
    cause = line.cause[i]
    if cause == BY_HOST:
        held = line.blocked_by[i]
        if held != BY_HOST:
            until = min(max(line.end_ns[held], start), end)
            if until > start:
                parts[_sync_part(line, held)] += until - start
                start = until
        parts["launch"] += end - start
        return
    parts[_cause_part(line, cause)] += end - start


def _sync_part(line: Timeline, held: int) -> str:
    """The host was in ``held``: its own work, or a wait for another operation."""
    op = line.program.ops[held]
    if op.kind == Kind.HOST:
        return "data_wait" if op.category == "data" else "launch"
    cause = line.cause[held]
    return "launch" if cause == BY_HOST else _cause_part(line, cause)


def _cause_part(line: Timeline, cause: int) -> str:
    op = line.program.ops[cause]
    if op.kind == Kind.COLLECTIVE or op.category == "collective":
        return "exposed_collectives"
    if op.kind in {Kind.SEND, Kind.RECV}:
        return "bubble"
    by_category = {
        "copy": "offload", "offload": "offload", "data": "data_wait", "optimizer": "optimizer",
    }  # fmt: skip
    if op.category in by_category:
        return by_category[op.category]
    return "compute" if op.category in KERNELS else "other"


def _account_tail(
    line: Timeline, first: int, stop: int, start: int, end: int, parts: dict[str, int]
) -> None:
    """After the last kernel: the step ends with whatever operation ends last."""
    last = max(range(first, stop), key=lambda i: line.end_ns[i])
    op = line.program.ops[last]
    part = _sync_part(line, last) if op.kind in {Kind.SYNC, Kind.HOST} else _cause_part(line, last)
    parts[part] += end - start


def _union(intervals: object) -> int:
    """Length of the union of (start, end) intervals."""
    total, reach = 0, -1
    for start, end in sorted(intervals):  # type: ignore[call-overload]
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
