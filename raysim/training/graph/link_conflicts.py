"""Which communications of a step could be on one link at one time, and want more than it has."""

from __future__ import annotations

from collections import defaultdict

from raysim.hardware.maxmin import Loads
from raysim.hardware.node_links import Link
from raysim.training.graph.step_graph import StepGraph

FULL = 1.0 + 1e-9


Streams = frozenset[tuple[int, str]]
"""Program and stream of all that take part; what has one in common follows one another."""
Use = tuple[Streams, Loads]
"""What these put on links."""


def conflicts(graph: StepGraph) -> list[dict[int, Streams]]:
    """Pieces, each the first of those that meet, that share a link too narrow for them."""
    pieces: dict[Use, list[int]] = defaultdict(list)
    rates: dict[Use, float] = defaultdict(float)
    for node in graph.nodes:
        if not node.meets:
            continue
        at = node.pieces[0]
        traffic = graph.comms.traffic_of(graph.op_of(at), graph.program_of(at).rank)
        own = frozenset((graph.pieces[p].program, graph.op_of(p).stream) for p in node.pieces)
        loads = graph.loads[traffic.ways]
        use = own, loads
        pieces[use].append(at)
        rates[use] = max(rates[use], traffic.cost.bytes_per_s * loads.scale)
    users: dict[Link, list[Use]] = defaultdict(list)
    for use in pieces:
        for link in use[1].links:
            users[link].append(use)
    apart: dict[tuple[Use, ...], None] = {}
    for link, uses in users.items():
        if len(uses) > 1 and not frozenset.intersection(*(own for own, _ in uses)):
            wanted: dict[Streams, float] = defaultdict(float)
            for use in uses:
                rate = rates[use] * use[1].links[link]
                share = min(1.0, rate / link.bytes_per_s) if link.bytes_per_s else 1.0
                wanted[use[0]] = max(wanted[use[0]], share)
            if sum(wanted.values()) > FULL:
                apart[tuple(uses)] = None
    return [{at: use[0] for use in uses for at in pieces[use]} for uses in apart]
