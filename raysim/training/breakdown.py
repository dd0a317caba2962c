"""Where a step's time went on one rank: busy kernels by kind, and gaps by what caused them.

The compute stream is either running something, or idle because of the host, a collective, a peer of
the pipeline, a copy or the data loader. The parts add up to the step exactly.

Ranks of a pipeline need not meet at the end of a step. The step is then that of all of them: a rank
that ends before the last waits for it, which is bubble; what a rank does of the next step while
others are still at the one before is in the step it was done in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from raysim.training.executor import BY_HOST, Timeline
from raysim.training.program import COMPUTE, Kind, Op

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

    def plus(self, other: Breakdown, times: float) -> Breakdown:
        """Add ``times`` as much of another; what rounding leaves over is the largest part's."""
        parts = {k: v + round(times * other.parts_ns[k]) for k, v in self.parts_ns.items()}
        step_ns = self.step_ns + round(times * other.step_ns)
        parts[max(parts, key=lambda k: parts[k])] += step_ns - sum(parts.values())
        return Breakdown(
            step_ns=step_ns,
            parts_ns=parts,
            collective_ns=self.collective_ns + round(times * other.collective_ns),
        )


PARTS = (
    "compute", "recompute", "exposed_collectives", "pipeline_transfers", "bubble", "offload",
    "launch", "data_wait", "optimizer", "other",
)  # fmt: skip


def step_breakdown(line: Timeline, step: int, step_ns: int | None = None) -> Breakdown:
    """Account for every nanosecond of an optimizer step on one rank.

    Parameters
    ----------
    line, step
        Of which rank, and which step.
    step_ns
        How long the step is for all ranks together; by default, for this one.
    """
    begin, end = line.step_window(step)
    length = end - begin if step_ns is None else step_ns
    until = max(begin + length, end)
    ends = line.program.step_ends
    own = range_breakdown(line, ends[step - 1] if step else 0, ends[step], until - length, end)
    parts = {**own.parts_ns, "bubble": own.parts_ns["bubble"] + until - end}
    return replace(own, step_ns=length, parts_ns=parts)


def range_breakdown(line: Timeline, first: int, stop: int, begin: int, end: int) -> Breakdown:
    """Account for ``begin`` to ``end``, during which operations ``first`` to ``stop`` ran."""
    parts: dict[str, int] = defaultdict(int)
    ops = line.program.ops
    now = begin
    for i in range(first, stop):
        op = ops[i]
        if op.stream != COMPUTE:
            continue
        start, finish = (min(max(t, now), end) for t in (line.start_ns[i], line.end_ns[i]))
        if start > now:
            _account_gap(line, i, now, start, parts)
        _account_busy(line, i, start, finish, parts)
        now = finish
    if end > now and stop > first:
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
    if category in KERNELS or category == "beside":
        return "compute"
    return {"optimizer": "optimizer", "collective": "exposed_collectives"}.get(category, "other")


def _account_gap(line: Timeline, i: int, start: int, end: int, parts: dict[str, int]) -> None:
    """Idle before operation ``i``: follow what held it up back to ``start``.

    An operation is blamed for the part of the gap in which it ran; what it waited for itself is
    blamed for the rest.
    """
    at = i
    while end > start:
        cause = line.cause[at]
        if cause == BY_HOST:
            held = line.blocked_by[at]
            released = line.end_ns[held] if held != BY_HOST else start
            idle_from = min(max(released, start), end)
            parts["launch"] += end - idle_from
            end = idle_from
            if held == BY_HOST or end <= start:
                break
            at = held
            if line.program.ops[held].kind == Kind.HOST:
                end = _blame(line, held, start, end, parts)
            continue
        end = _blame(line, cause, start, end, parts)
        at = cause
    parts["launch"] += max(0, end - start)


def _blame(line: Timeline, cause: int, start: int, end: int, parts: dict[str, int]) -> int:
    """Give ``cause`` the part of the gap in which it ran; returns where its own wait ends."""
    op = line.program.ops[cause]
    ran_from = min(max(line.start_ns[cause], start), end)
    met = min(max(line.met_ns[cause], ran_from), end)
    if op.kind in {Kind.SEND, Kind.RECV}:
        parts["pipeline_transfers"] += end - met
        parts["bubble"] += met - ran_from
    elif op.call is not None and op.call.group.partition("_")[0] not in {"dp", "tp"}:
        # Stages of a pipeline reach such a call at different times.
        parts["exposed_collectives"] += end - met
        parts["bubble"] += met - ran_from
    else:
        parts[_cause_part(op)] += end - ran_from
    return ran_from


def _cause_part(op: Op) -> str:
    if op.kind == Kind.COLLECTIVE or op.category == "collective":
        return "exposed_collectives"
    by_category = {
        "copy": "offload", "offload": "offload", "data": "data_wait", "optimizer": "optimizer",
        "host": "launch", "sync": "launch",
    }  # fmt: skip
    if op.category in by_category:
        return by_category[op.category]
    return "compute" if op.category in KERNELS else "other"


def _account_tail(
    line: Timeline, first: int, stop: int, start: int, end: int, parts: dict[str, int]
) -> None:
    """After the last kernel: the step ends with whatever operation ends last."""
    last = max(range(first, stop), key=lambda i: line.end_ns[i])
    if line.program.ops[last].kind != Kind.SYNC:
        end = _blame(line, last, start, end, parts)
    _account_gap(line, last, start, end, parts)


def _union(intervals: object) -> int:
    """Length of the union of (start, end) intervals."""
    total, reach = 0, -1
    for start, end in sorted(intervals):  # type: ignore[call-overload]
        if end > reach:
            total += end - max(start, reach)
            reach = end
    return total
