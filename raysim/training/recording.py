"""Turn what was played into records: spans per stream, memory counters, the peak."""

from __future__ import annotations

from collections import Counter

from raysim.kernel.record import Recorder
from raysim.training.executor import Timeline
from raysim.training.memory import RankMemory
from raysim.training.program import Kind, Op
from raysim.training.tower import StepOutcome

LABELS = {"sync": "host"}


def record_outcome(outcome: StepOutcome, recorder: Recorder) -> None:
    """Write the last simulated step of every simulated rank; nothing if the recorder is off."""
    if not recorder.enabled:
        return
    last = len(outcome.step_ns) - 1
    for line, memory in zip(outcome.timelines, outcome.memory, strict=True):
        track = memory.ledger.track
        _spans(outcome, line, last, track, recorder)
        _memory(memory, line.step_window(last)[0], recorder)


def _memory(memory: RankMemory, begin: int, recorder: Recorder) -> None:
    """Counters by category from ``begin`` on, and the fullest moment among them."""
    track = memory.ledger.track
    rows = memory.ledger.timeline()
    held = {row.category: row.bytes_after for row in rows if row.t_ns < begin}
    for category in ("context", "slack"):
        held[category] = memory.by_category.get(category, 0)
    for category, size in held.items():
        recorder.counter(track, f"memory/{category}", begin, size)
    fullest, peak_ns = sum(held.values()), begin
    for row in rows:
        if row.t_ns < begin:
            continue
        recorder.counter(track, f"memory/{row.category}", row.t_ns, row.bytes_after)
        held[row.category] = row.bytes_after
        if sum(held.values()) > fullest:
            fullest, peak_ns = sum(held.values()), row.t_ns
    recorder.instant(track, "peak memory", "memory", peak_ns, {"when": memory.when})


def _spans(
    outcome: StepOutcome, line: Timeline, step: int, track: tuple[str, ...], recorder: Recorder
) -> None:
    program = line.program
    sent: Counter[tuple[int, int]] = Counter()
    first = program.step_ends[step - 1] if step else 0
    for i in range(first, program.step_ends[step]):
        op = program.ops[i]
        if line.end_ns[i] <= line.start_ns[i]:
            continue
        details = _details(outcome, op, program.rank, step)
        if op.call is not None and op.call.op == "send_recv":
            pair = (program.rank, op.call.peer)
            pair = pair if op.kind == Kind.SEND else pair[::-1]
            sent[pair] += 1
            details["flow"] = (pair[0] * outcome.plan.mesh.world + pair[1]) * 1_000_000 + sent[pair]
        recorder.span(
            (*track, op.stream),
            op.name,
            LABELS.get(op.category, op.category),
            line.start_ns[i],
            line.end_ns[i],
            details,
        )


def _details(outcome: StepOutcome, op: Op, rank: int, step: int) -> dict[str, object]:
    details: dict[str, object] = {"step": step, "rank": rank}
    if op.micro_batch >= 0:
        details["micro_batch"] = op.micro_batch
    if op.flops:
        details["flops"] = op.flops
    if op.call is None:
        return details
    details |= {"op": op.call.op, "bytes": op.call.size_bytes, "group": op.call.group}
    if op.call.op != "send_recv":
        cost = outcome.comms.traffic(op.call, rank).cost
        details["algorithm"] = cost.algorithm
        details["bus_bytes_per_s"] = cost.bus_bytes_per_s
    else:
        details["peer"] = op.call.peer
    return details
