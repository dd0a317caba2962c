"""The pieces of all programs of a step in an order in which each follows what it waits for.

The order and all that does not depend on costs are worked out once; ``recosting`` then prices many
variants of a step at once, ``replicas`` every rank of it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter

from raysim.errors import InvariantViolation
from raysim.hardware.maxmin import Loads
from raysim.training.communicators import Communicators
from raysim.training.graph.pieces import Piece, cut
from raysim.training.on_links import loads_of
from raysim.training.program import COMPUTE, Kind, Op, Program
from raysim.units import NS_PER_S, to_ns

_stop = attrgetter("stop")


@dataclass(slots=True)
class Node:
    """One piece, or the pieces of all ranks that meet in one communication."""

    pieces: tuple[int, ...]
    waits: tuple[int, ...]
    """Pieces it follows, their host's synchronisations left out."""
    meets: bool


class StepGraph:
    """What waits for what in some programs.

    Parameters
    ----------
    programs
        Of the simulated ranks.
    comms
        Who meets whom, and what it costs.
    alone
        Communicators whose calls nothing can interfere with, of one simulated rank each: they are
        not met in. Empty: every rank of a stage is looked at, and all communications are.
    """

    def __init__(
        self, programs: Sequence[Program], comms: Communicators, alone: dict[str, bool]
    ) -> None:
        self.programs = tuple(programs)
        self.comms = comms
        self.alone = alone
        self.loads = loads_of(programs, comms)
        self._narrowest: dict[Loads, float] = {}
        """Rate of the narrowest link that loads are on."""
        self.pieces: list[Piece] = []
        self.spans: list[range] = []
        """Pieces of each program."""
        for number, program in enumerate(programs):
            first = len(self.pieces)
            self.pieces += cut(program, number, self._meets, first)
            self.spans.append(range(first, len(self.pieces)))
        self.nodes = self._ordered(self._joined())

    def _meets(self, op: Op) -> bool:
        if op.kind != Kind.COLLECTIVE:
            return True
        assert op.call is not None, f"{op!r} communicates without a call"
        return not self.alone.get(op.call.group)

    def op_of(self, piece: int) -> Op:
        """The first operation of a piece, which is its only one if it meets others."""
        own = self.pieces[piece]
        return self.programs[own.program].ops[own.first]

    def program_of(self, piece: int) -> Program:
        """Whose piece it is."""
        return self.programs[self.pieces[piece].program]

    def tips(self, step: int) -> list[int]:
        """Pieces of a step that no other of it waits for: one of them ends last."""
        found = []
        for program, span in zip(self.programs, self.spans, strict=True):
            stop = program.step_ends[step]
            start = program.step_ends[step - 1] if step else 0
            own = [at for at in span if start < self.pieces[at].stop <= stop]
            waited = {w for at in own for w in (*self.pieces[at].waits, self.pieces[at].host)}
            found += [at for at in own if at not in waited]
        return found

    def backward_end(self, program: int, count: int) -> int:
        """The piece that ends with the ``count``-th backward pass, side streams excepted."""
        own = self.programs[program]
        stop = own.backward_ends[count - 1]
        last = next(i for i in range(stop - 1, -1, -1) if own.ops[i].stream == COMPUTE)
        span = self.spans[program]
        at = bisect_left(self.pieces, last + 1, span.start, span.stop, key=_stop)
        assert self.pieces[at].stop == last + 1, f"no piece ends with operation {last}"
        return at

    def ends(self) -> set[int]:
        """Pieces that steps and backward passes end with."""
        found = {at for step in range(len(self.programs[0].step_ends)) for at in self.tips(step)}
        for number, program in enumerate(self.programs):
            counts = range(1, len(program.backward_ends) + 1)
            found |= {self.backward_end(number, count) for count in counts}
        return found

    def last_uses(self, kept: Collection[int]) -> list[list[int]]:
        """After each node, the pieces whose ends nobody asks for any more, but for those kept."""
        seen, found = set(kept), list[list[int]]()
        pieces = self.pieces
        for node in reversed(self.nodes):
            last = []
            for at in node.pieces:
                host = pieces[at].host
                for used in (at, host) if host >= 0 else (at,):
                    if used not in seen:
                        seen.add(used)
                        last.append(used)
            for used in node.waits:
                if used not in seen:
                    seen.add(used)
                    last.append(used)
            found.append(last)
        found.reverse()
        return found

    def duration_ns(self, op: Op, rank: int) -> int:
        """Of an operation when nobody else is on its links."""
        if op.kind in (Kind.LOCAL, Kind.HOST, Kind.SYNC):
            return op.duration_ns
        if not self._meets(op):
            assert op.call is not None, f"{op!r} communicates without a call"
            return to_ns(self.comms.traffic(op.call, rank).cost.seconds)
        return self._transfer_ns(op, rank)

    def _transfer_ns(self, op: Op, rank: int) -> int:
        """Of a communication that has its links to itself, rounded as the network rounds."""
        assert op.call is not None, f"{op!r} communicates without a call"
        traffic = self.comms.traffic_of(op, rank)
        cost, loads = traffic.cost, self.loads[traffic.ways]
        latency_ns = to_ns(cost.latency_s)
        size = float(op.call.size_bytes)
        if not size or not loads.links:
            return latency_ns + to_ns(size / cost.bytes_per_s)
        narrowest = self._narrowest.get(loads)
        if narrowest is None:
            rates = (link.bytes_per_s / load for link, load in loads.links.items())
            narrowest = self._narrowest[loads] = min(rates)
        rate = min(cost.bytes_per_s * loads.scale, narrowest)
        return latency_ns + math.ceil(size * loads.scale / rate * NS_PER_S - 1e-6)

    def _joined(self) -> list[Node]:
        """Nodes in no order: pieces of one call of one communicator together."""
        nodes: list[Node] = []
        waiting: dict[object, list[int]] = defaultdict(list)
        counts: dict[object, int] = defaultdict(int)
        for at, piece in enumerate(self.pieces):
            if piece.kind not in (Kind.COLLECTIVE, Kind.SEND, Kind.RECV):
                nodes.append(Node((at,), piece.waits, meets=False))
                continue
            channel, expected = self._channel(at)
            if expected == 1:
                nodes.append(Node((at,), piece.waits, meets=True))
                continue
            key = (self.programs[piece.program].rank, channel)
            counts[key] += 1
            here = waiting[channel, counts[key]]
            here.append(at)
            if len(here) == expected:
                waits = dict.fromkeys(w for p in here for w in self.pieces[p].waits)
                nodes.append(Node(tuple(here), tuple(waits), meets=True))
                del waiting[channel, counts[key]]
        if waiting:
            raise InvariantViolation(f"{len(waiting)} communications lack a side")
        return nodes

    def _channel(self, at: int) -> tuple[object, int]:
        """What a piece meets others in, as the executor has it, and how many."""
        op, rank = self.op_of(at), self.programs[self.pieces[at].program].rank
        assert op.call is not None, f"{op!r} communicates without a call"
        if op.kind == Kind.COLLECTIVE:
            members = self.comms.members(op.call.group, rank)
            return members, self.comms.participants(op.call.group, rank)
        pair = (rank, op.call.peer) if op.kind == Kind.SEND else (op.call.peer, rank)
        return ("p2p", *pair, op.call.tag), 2

    def _ordered(self, nodes: list[Node]) -> list[Node]:
        """Each after what it waits for, as early as can be."""
        node_of = [0] * len(self.pieces)
        for n, node in enumerate(nodes):
            for p in node.pieces:
                node_of[p] = n
        after: list[list[int]] = [[] for _ in nodes]
        missing = [0] * len(nodes)
        for n, node in enumerate(nodes):
            hosts = [self.pieces[p].host for p in node.pieces]
            befores = {node_of[w] for w in (*node.waits, *hosts) if w >= 0}
            missing[n] = len(befores)
            for before in befores:
                after[before].append(n)
        ready = deque(n for n, count in enumerate(missing) if not count)
        order: list[Node] = []
        while ready:
            n = ready.popleft()
            order.append(nodes[n])
            for later in after[n]:
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        if len(order) < len(nodes):
            raise InvariantViolation(f"{len(nodes) - len(order)} pieces wait for ever")
        return order
