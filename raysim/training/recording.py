"""Turn what was played into records: spans per stream, memory and link counters, the peak.

Of the links, those of each simulated rank are recorded (``link_use``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raysim.hardware.device import MemoryRow
from raysim.kernel.record import Recorder
from raysim.training.executor import Timeline
from raysim.training.link_use import LinkUse, link_use
from raysim.training.memory.history import RankHistory
from raysim.training.memory.peaks import RankMemory, ledger
from raysim.training.program import Kind, Op, Program
from raysim.training.tower import StepOutcome

LABELS = {"sync": "host"}


def histories(outcome: StepOutcome) -> tuple[RankHistory, ...]:
    """What shows each simulated rank's memory, tensor by tensor."""
    config, gpu = outcome.plan.allocator, outcome.costs.gpu
    return tuple(
        RankHistory(timeline=line, memory=memory, gpu=gpu, config=config)
        for line, memory in zip(outcome.timelines, outcome.memory, strict=True)
    )


def record_outcome(
    outcome: StepOutcome, recorder: Recorder, uses: Sequence[LinkUse] | None = None
) -> None:
    """Write the last simulated step of every simulated rank; nothing if the recorder is off.

    ``uses`` is ``link_use(outcome)`` where somebody has it.
    """
    if not recorder.enabled:
        return
    last, arrows = len(outcome.step_ns) - 1, _Arrows(outcome)
    for line, memory in zip(outcome.timelines, outcome.memory, strict=True):
        track = memory.track
        _spans(outcome, line, last, track, recorder, arrows)
        rows = ledger(line, track, outcome.costs.gpu).timeline()
        _memory(memory, rows, line.step_window(last)[0], recorder)
    for use in link_use(outcome) if uses is None else uses:
        for t_ns, rate in use.rates:
            recorder.counter((use.node,), f"link/{use.link.name}", t_ns, rate)


def _memory(memory: RankMemory, rows: Sequence[MemoryRow], begin: int, recorder: Recorder) -> None:
    """Counters by category from ``begin`` on, and the fullest moment among them."""
    track = memory.track
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
    failed = memory.out_of_memory
    if failed is not None:
        said = {"message": failed.message, "when": failed.when, "category": failed.category}
        recorder.instant(track, "out of memory", "memory", peak_ns, said)


class _Arrows:
    """Numbers of the arrows between operations; what they connect shares a key."""

    def __init__(self, outcome: StepOutcome) -> None:
        self.comms = outcome.comms
        self.numbers: dict[tuple[object, ...], int] = {}

    def of(self, line: Timeline, ops: range) -> dict[int, tuple[int, ...]]:
        """Of each operation, the arrows that touch it.

        They lead from a send to its receive, between ranks that meet in a collective, and from what
        ended to what had waited for it on another stream.
        """
        found: dict[int, list[int]] = {}
        count: Counter[tuple[object, ...]] = Counter()
        drawn = {i for i in ops if line.end_ns[i] > line.start_ns[i]}
        for i in ops:
            key = self._meeting(line.program, i)
            if key is not None:
                count[key] += 1
                found.setdefault(i, []).append(self._number(*key, count[key]))
            cause = line.cause[i]
            if {i, cause} <= drawn and self._apart(line.program, i, cause):
                number = self._number("wait", line.program.rank, i)
                found.setdefault(cause, []).append(number)
                found.setdefault(i, []).append(number)
        return {i: tuple(numbers) for i, numbers in found.items()}

    def _number(self, *key: object) -> int:
        return self.numbers.setdefault(key, len(self.numbers) + 1)

    def _meeting(self, program: Program, i: int) -> tuple[object, ...] | None:
        """The simulated ranks that meet in a communication; None where one stands for all."""
        op, rank = program.ops[i], program.rank
        if op.call is None:
            return None
        if op.kind == Kind.COLLECTIVE:
            if self.comms.participants(op.call.group, rank) < 2:
                return None
            return op.call.group, self.comms.members(op.call.group, rank)
        pair = (rank, op.call.peer) if op.kind == Kind.SEND else (op.call.peer, rank)
        return "send_recv", *pair, op.call.tag

    @staticmethod
    def _apart(program: Program, i: int, cause: int) -> bool:
        return program.ops[i].stream != program.ops[cause].stream


def _spans(
    outcome: StepOutcome, line: Timeline, step: int, track: tuple[str, ...], recorder: Recorder,
    arrows: _Arrows,
) -> None:  # fmt: skip
    program = line.program
    ops = range(program.step_ends[step - 1] if step else 0, program.step_ends[step])
    flows = arrows.of(line, ops)
    for i in ops:
        op = program.ops[i]
        if line.end_ns[i] <= line.start_ns[i]:
            continue
        details: dict[str, object] = {"step": step, "rank": program.rank}
        if program.micro_batches[i] >= 0:
            details["micro_batch"] = program.micro_batches[i]
        details |= _details(outcome, op, program.rank)
        if i in flows:
            details["flow"] = flows[i]
        recorder.span(
            (*track, op.stream),
            op.name,
            LABELS.get(op.category, op.category),
            line.start_ns[i],
            line.end_ns[i],
            details,
        )


def _details(outcome: StepOutcome, op: Op, rank: int) -> dict[str, object]:
    details: dict[str, object] = {}
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
