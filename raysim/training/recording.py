"""Turn what was played into records: spans per stream, memory counters, the peak."""

from __future__ import annotations

from raysim.kernel.record import Recorder
from raysim.training.executor import Timeline
from raysim.training.program import Op
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
        begin = line.step_window(last)[0]
        held: dict[str, int] = {}
        for row in memory.ledger.timeline():
            if row.t_ns < begin:
                held[row.category] = row.bytes_after
                continue
            recorder.counter(track, f"memory/{row.category}", row.t_ns, row.bytes_after)
        for category, size in held.items():
            recorder.counter(track, f"memory/{category}", begin, size)
        for category in ("context", "slack"):
            size = memory.by_category.get(category, 0)
            recorder.counter(track, f"memory/{category}", begin, size)
        recorder.instant(
            track, "peak memory", "memory", max(memory.at_ns, begin), {"when": memory.when}
        )


def _spans(
    outcome: StepOutcome, line: Timeline, step: int, track: tuple[str, ...], recorder: Recorder
) -> None:
    program = line.program
    first = program.step_ends[step - 1] if step else 0
    for i in range(first, program.step_ends[step]):
        op = program.ops[i]
        if line.end_ns[i] <= line.start_ns[i]:
            continue
        recorder.span(
            (*track, op.stream),
            op.name,
            LABELS.get(op.category, op.category),
            line.start_ns[i],
            line.end_ns[i],
            _details(outcome, op, program.rank, step),
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
