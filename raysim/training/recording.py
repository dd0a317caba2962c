"""Turn what was played into records: spans per stream, memory and link counters, the peak.

Of the links, each simulated rank's way out is recorded: its NIC where the job spans nodes, else its
NVLink or PCIe port. The others carry the same by symmetry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from raysim.hardware.device import MemoryRow
from raysim.hardware.node_links import Link
from raysim.kernel.record import Recorder
from raysim.training.executor import Timeline
from raysim.training.memory.peaks import RankMemory, ledger
from raysim.training.program import Kind, Op
from raysim.training.tower import StepOutcome

LABELS = {"sync": "host"}


def record_outcome(outcome: StepOutcome, recorder: Recorder) -> None:
    """Write the last simulated step of every simulated rank; nothing if the recorder is off."""
    if not recorder.enabled:
        return
    last = len(outcome.step_ns) - 1
    for line, memory in zip(outcome.timelines, outcome.memory, strict=True):
        track = memory.track
        _spans(outcome, line, last, track, recorder)
        rows = ledger(line, track, outcome.costs.gpu).timeline()
        _memory(memory, rows, line.step_window(last)[0], recorder)
        _way_out(outcome, line, last, track, recorder)


def _way_out(
    outcome: StepOutcome, line: Timeline, step: int, track: tuple[str, ...], recorder: Recorder
) -> None:
    """Bytes per second on the rank's way out, while each communication moved its bytes."""
    link = _nearest_link(outcome, line.program.rank)
    changes: Counter[int] = Counter()
    first = line.program.step_ends[step - 1] if step else 0
    for i in range(first, line.program.step_ends[step]):
        call = line.program.ops[i].call
        begin, end = line.met_ns[i], line.end_ns[i]
        if call is None or line.program.ops[i].kind == Kind.RECV or end <= begin:
            continue
        loads = outcome.comms.traffic_of(line.program.ops[i], line.program.rank).loads
        rate = round(
            loads.links.get(link, 0.0) * loads.scale * call.size_bytes / (end - begin) * 1e9
        )
        changes[begin] += rate
        changes[end] -= rate
    rate = 0
    for t_ns in sorted(t for t, change in changes.items() if change):
        rate += changes[t_ns]
        recorder.counter(track[:1], f"link/{link.name}", t_ns, rate)


def _nearest_link(outcome: StepOutcome, rank: int) -> Link:
    comms = outcome.comms
    node, local = comms.placement[rank]
    links = comms.topology.node(node)
    if comms.placement[comms.mesh.world - 1][0] != comms.placement[0][0]:
        return links.nic_out[links.nics_of_gpu[local][0]]
    return (links.nvlink_out or links.pcie_out)[local]


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
        details: dict[str, object] = {"step": step, "rank": program.rank}
        if program.micro_batches[i] >= 0:
            details["micro_batch"] = program.micro_batches[i]
        details |= _details(outcome, op, program.rank)
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
