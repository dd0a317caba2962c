"""What the communications of programs put on links, and which have theirs to themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from raysim.hardware.link_numbers import Ways
from raysim.hardware.maxmin import Loads
from raysim.hardware.node_links import Link
from raysim.training.communicators import Communicators
from raysim.training.program import Kind, Op, Program

NEGLIGIBLE_BYTES = 1 << 16
"""Calls below this are latency: they neither slow others nor are slowed."""


def loads_of(programs: Sequence[Program], comms: Communicators) -> dict[Ways, Loads]:
    """What each communication puts on the links of a network that carries no others."""
    return comms.loads(
        comms.traffic_of(op, program.rank)
        for program in programs
        for op in _communications(program)
    )


def communicators_alone(programs: Sequence[Program], comms: Communicators) -> dict[str, bool]:
    """Communicators in which one simulated rank stands for all, and whose links no other uses.

    What their calls cost is then arithmetic, unless a link is narrower than that took it for.
    Calls too small to slow anything down are not looked at.
    """
    loads = loads_of(programs, comms)
    links: dict[tuple[str, int], set[Link]] = {}
    single: dict[str, bool] = {}
    for program in programs:
        rank = program.rank
        for op in _communications(program):
            call = op.call
            if call is None or call.size_bytes < NEGLIGIBLE_BYTES:
                continue
            collective = op.kind == Kind.COLLECTIVE
            name = call.group if collective else "p2p"
            one = collective and comms.participants(name, rank) == 1
            single[name] = single.get(name, True) and one
            own = loads[comms.traffic_of(op, rank).ways].links
            links.setdefault((name, rank), set()).update(own)
    used: set[Link] = set()
    shared = set(comms.topology.narrowed)
    for mine in links.values():
        shared |= used & mine
        used |= mine
    return {
        name: one and all(mine.isdisjoint(shared) for (by, _), mine in links.items() if by == name)
        for name, one in single.items()
    }


def _communications(program: Program) -> Iterable[Op]:
    """Those of a program that differ."""
    found = {(op.kind, op.call): op for op in dict.fromkeys(program.ops) if op.call is not None}
    return found.values()
