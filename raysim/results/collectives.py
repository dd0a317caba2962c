"""What travelled between ranks in a step: rows of the summary, one for each kind of call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.perf.collectives import bus_factor
from raysim.training.program import Call, Kind
from raysim.training.tower import StepOutcome

_CARRIES = {"all-gather": "parameters", "all-reduce": "gradients", "reduce-scatter": "gradients"}


def collectives(step: StepOutcome) -> list[dict[str, Any]]:
    """Calls of the last step on the slowest rank, grouped as DeepSpeed's comms logger does."""
    line = step.slowest
    rank = line.program.rank
    groups: dict[tuple[str, str, str], _Calls] = {}
    for ops, times in step.weighted_ops(line):
        for i in ops:
            op = line.program.ops[i]
            if op.kind == Kind.COLLECTIVE and op.call is not None:
                key = (op.call.op, op.call.group, _what(op.name, op.call.group))
                calls = groups.setdefault(key, _Calls(op.call))
                calls.count += times
                calls.size_bytes += times * op.call.size_bytes
                calls.busy_ns += times * (line.end_ns[i] - line.met_ns[i])
    rows = []
    for (op_name, group, what), calls in groups.items():
        cost_of = step.comms.traffic(calls.example, rank).cost
        seconds = calls.busy_ns / 1e9
        size = round(calls.size_bytes)
        ranks = len(step.comms.members(group, rank))
        bus = size * bus_factor(cost_of.op, ranks) / seconds if seconds else 0.0
        rows.append(
            {
                "op": op_name,
                "what": what,
                "group": group,
                "group_ranks": ranks,
                "count": round(calls.count),
                "bytes": size,
                "seconds": seconds,
                "bus_bytes_per_s": bus,
                "algorithm": cost_of.algorithm,
                "protocol": cost_of.protocol,
            }
        )
    return sorted(rows, key=lambda row: -row["seconds"])


@dataclass(slots=True)
class _Calls:
    """Running totals of equal calls."""

    example: Call
    count: float = 0.0
    size_bytes: float = 0.0
    busy_ns: float = 0.0


def _what(name: str, group: str) -> str:
    """What a call carries: ``all-gather model.layers.3.mlp`` carries parameters.

    A module's name is no answer: over tensor-parallel ranks its activations travel, over
    data-parallel ones its parameters, and back its gradients.
    """
    op, _, rest = name.partition(" ")
    if op not in _CARRIES:
        return name
    if "." not in rest and rest not in {"root", "output_layer"}:
        return rest
    return "tensor-parallel activations" if group.startswith("tp") else _CARRIES[op]
