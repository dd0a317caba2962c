"""Every rank of a step at once: the graph of one rank per stage, with a column for each rank.

Ranks of a stage run the same program; what differs is how long their kernels take: for good, this
step, and at every launch (``noise``, ``jitter``). They meet where the real ones do: tensor-parallel
peers and replicas in their collectives, stages in sends; each waits for the last that it meets.

A time is an array (tensor-parallel peers, ranks that hold the same weights), of length one along an
axis on which all are equal: after a collective its members are, until their kernels part them.

Equal to playing every rank with the same draws where no two communications slow each other; a send
or collective takes what it takes with its siblings on their way at the same time, as folded ones,
and a narrow link makes what crosses it slower for all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from raysim.kernel.rng import Streams
from raysim.training.communicators import Communicators
from raysim.training.graph.pieces import Piece
from raysim.training.graph.step_graph import Node, StepGraph
from raysim.training.jitter import Factors, Launches, launches, quantiles
from raysim.training.noise import Noise, drawn_factors, is_kernel, times_of
from raysim.training.program import Kind, Op, Program

Ns = npt.NDArray[np.float64]
"""Whole nanoseconds: exact up to 104 days."""
_AXES = {"tp": (0,), "mp": (0,), "dp": (1,), "copies": (1,), "pp": (), "tied": ()}
"""Of each communicator, the axes of a stage over which its members are all there are."""


def every_rank_step_ns(
    programs: Sequence[Program], comms: Communicators, noise: Noise, streams: Streams
) -> tuple[int, ...]:
    """Nanoseconds of each optimizer step, over all ranks.

    Parameters
    ----------
    programs
        Of one rank per stage, as compiled.
    comms
        Folded.
    noise
        How ranks differ.
    streams
        Where draws come from.
    """
    assert comms.folded, "one rank per stage is looked at, with a column for each of its peers"
    return _EveryRank(StepGraph(programs, comms, {}), noise, streams).step_ns()


class _EveryRank:
    """Goes through the graph once."""

    def __init__(self, graph: StepGraph, noise: Noise, streams: Streams) -> None:
        self.graph = graph
        self.rows: dict[int, Ns] = {}
        """When pieces ended, while somebody asks."""
        self.stages = [_Stage(graph, n, noise, streams) for n in range(len(graph.programs))]
        self.least: dict[int, float] = {}
        """No rank ends a piece earlier."""
        self._transfers: dict[int, int] = {}
        self._members: dict[tuple[str, int], npt.NDArray[np.intp]] = {}

    def step_ns(self) -> tuple[int, ...]:
        """Duration of each step."""
        tips = [self.graph.tips(step) for step in range(len(self.graph.programs[0].step_ends))]
        kept = {at for some in tips for at in some}
        for node, last in zip(self.graph.nodes, self.graph.last_uses(kept), strict=True):
            if self._followed(node):
                pass
            elif node.meets:
                self._meet(node)
            else:
                self._run(node.pieces[0])
            for at in last:
                del self.rows[at]
        ends = [max(int(self.rows[at].max()) for at in some) for some in tips]
        return tuple(b - a for a, b in zip([0, *ends[:-1]], ends, strict=True))

    def _followed(self, node: Node) -> bool:
        """The common case, looked at first: after one piece, and no host is late."""
        at = node.pieces[0]
        piece = self.graph.pieces[at]
        if len(piece.waits) != 1 or piece.host >= 0 or len(node.pieces) > 1:
            return False
        (before,) = piece.waits
        stage, least = self.stages[piece.program], self.least[before]
        if stage.issued_ns[at] > least or piece.kind in (Kind.SYNC, Kind.HOST):
            return False
        if node.meets:
            op = stage.ops[piece.first]
            transfer_ns = self._transfer_ns(op, piece.program)
            ready = self._last_of_peers(self.rows[before], op, piece.program)
            self.rows[at] = ready + transfer_ns
            self.least[at] = least + transfer_ns
        else:
            self.rows[at] = self.rows[before] + stage.durations(piece)
            self.least[at] = least + stage.least_ns(piece)
        return True

    def _started(self, piece: Piece) -> tuple[Ns | None, float]:
        """The latest end that a piece waits for, and a bound below it."""
        start, least = None, -1.0
        for w in piece.waits:
            start = self.rows[w] if start is None else np.maximum(start, self.rows[w])
            least = max(least, self.least[w])
        return start, least

    def _host(self, piece: Piece, at: int) -> Ns | float:
        """When its host comes to a piece."""
        begin = self.stages[piece.program].begin[at]
        return begin if piece.host < 0 else begin + self.rows[piece.host]

    def _ahead(self, piece: Piece, at: int, least: float) -> bool:
        """Whether every rank's host has issued all of a piece by then."""
        return piece.host < 0 and self.stages[piece.program].issued_ns[at] <= least

    def _run(self, at: int) -> None:
        piece = self.graph.pieces[at]
        stage = self.stages[piece.program]
        start, least = self._started(piece)
        self.least[at] = max(least, 0.0) + stage.least_ns(piece)
        if start is not None and self._ahead(piece, at, least):
            self.rows[at] = start if piece.kind == Kind.SYNC else start + stage.durations(piece)
            return
        host = self._host(piece, at)
        if piece.kind in (Kind.SYNC, Kind.HOST):
            end = np.atleast_2d(host + stage.host_ns(stage.ops[piece.first]))
            self.rows[at] = end if start is None else np.maximum(start, end)
            return
        for i in range(piece.first, piece.stop):
            op = stage.ops[i]
            issue = np.atleast_2d(host + stage.scaled(op.before_ns))
            host = issue + stage.scaled(op.host_ns)
            start = issue if start is None else np.maximum(start, issue)
            start = np.maximum(start + stage.duration(i), host)
        assert start is not None, "a run has an operation"
        self.rows[at] = start

    def _meet(self, node: Node) -> None:
        first = self.graph.pieces[node.pieces[0]]
        ready, least = self._started_all(node)
        ahead = all(self._ahead(self.graph.pieces[at], at, least) for at in node.pieces)
        returns: list[Ns] = []
        for at in () if ahead else node.pieces:
            piece = self.graph.pieces[at]
            stage, op = self.stages[piece.program], self.graph.op_of(at)
            issue = np.atleast_2d(self._host(piece, at) + stage.scaled(op.before_ns))
            ready = issue if ready is None else np.maximum(ready, issue)
            returns.append(issue + stage.scaled(op.host_ns))
        assert ready is not None, "somebody arrives"
        op, program = self.graph.op_of(node.pieces[0]), first.program
        transfer_ns = self._transfer_ns(op, program)
        through = self._last_of_peers(ready, op, program) + transfer_ns
        for number, at in enumerate(node.pieces):
            self.rows[at] = through if ahead else np.maximum(through, returns[number])
            self.least[at] = max(least, 0.0) + transfer_ns

    def _started_all(self, node: Node) -> tuple[Ns | None, float]:
        """As ``_started``, over all that meet."""
        ready, least = self._started(self.graph.pieces[node.pieces[0]])
        for at in node.pieces[1:]:
            start, bound = self._started(self.graph.pieces[at])
            least = max(least, bound)
            if ready is None or start is None:
                ready = start if ready is None else ready
            else:
                ready = np.maximum(ready, start)
        return ready, least

    def _transfer_ns(self, op: Op, program: int) -> int:
        known = self._transfers.get(id(op))
        if known is None:
            rank = self.graph.programs[program].rank
            known = self._transfers[id(op)] = self.graph.duration_ns(op, rank)
        return known

    def _last_of_peers(self, ready: Ns, op: Op, program: int) -> Ns:
        """When the last member of each communicator of a stage was there."""
        if op.kind != Kind.COLLECTIVE:
            return ready
        assert op.call is not None, f"{op!r} communicates without a call"
        group = op.call.group
        axes = _AXES.get(group)
        if axes is not None:
            for axis in axes:
                if ready.shape[axis] > 1:
                    ready = np.maximum.reduce(ready, axis=axis, keepdims=True)
            return ready
        if ready.shape[1] == 1:
            return ready
        members = self._grouped(group, program)
        latest: Ns = np.empty_like(ready)
        latest[:, members] = ready[:, members].max(axis=1)[:, None]
        return latest

    def _grouped(self, group: str, program: int) -> npt.NDArray[np.intp]:
        """Columns by (place in the communicator, communicator)."""
        key = group, program
        if key not in self._members:
            comms, first = self.graph.comms, self.graph.programs[program].rank
            tp = comms.mesh.tp
            found = dict.fromkeys(
                comms.members(group, first + column * tp)
                for column in range(self.stages[program].width)
            )
            columns = [[(rank - first) // tp for rank in members] for members in found]
            self._members[key] = np.array(columns, dtype=np.intp).T
        return self._members[key]


class _Stage:
    """One stage's ranks: when their hosts come to each piece, and how long their kernels take."""

    def __init__(self, graph: StepGraph, number: int, noise: Noise, streams: Streams) -> None:
        program, comms = graph.programs[number], graph.comms
        mesh = comms.mesh
        self.ops = program.ops
        self.width = mesh.world // mesh.pp // mesh.tp
        self.tp = mesh.tp
        ranks = range(program.rank, program.rank + self.width * self.tp)
        nodes = [comms.placement[rank][0] for rank in ranks]
        scales, hosts = dict(noise.kernels), dict(noise.hosts)
        steps = len(program.step_ends)
        drawn = [
            drawn_factors(rank, steps, noise, streams, scales.get(node, 1.0))
            for rank, node in zip(ranks, nodes, strict=True)
        ]
        self.kernels = [self._placed(np.array(factors)) for factors in zip(*drawn, strict=True)]
        self.host = self._placed(np.array([hosts.get(node, 1.0) for node in nodes]))
        places = range(len(self.ops))
        self._step_of = np.searchsorted(program.step_ends, places, side="right").tolist()
        self._scaled: dict[int, Ns | float] = {}
        self._durations: dict[tuple[Op, int], Ns] = {}
        self._is_kernel = np.array([is_kernel(op) for op in self.ops])
        self._kernels_before = np.cumsum([False, *self._is_kernel]).tolist()
        self._base = np.array([op.duration_ns for op in self.ops], dtype=np.float64)
        self._which: Launches | None = None
        if noise.kernel_cv:
            stage = mesh.coordinate(program.rank).pp
            which = launches(streams, stage, int(self._is_kernel.sum()), len(ranks))
            by_peer = which.reshape(-1, self.width, self.tp).swapaxes(1, 2)
            self._which = np.ascontiguousarray(by_peer)
            self._quantiles = quantiles(noise.kernel_cv)
        least = np.floor(self._base * self._least_times())
        self._least = np.concatenate(([0.0], np.cumsum(least))).tolist()
        self.begin: dict[int, Ns | float] = {}
        self.issued_ns: dict[int, float] = {}
        """By then, from the synchronisation before on, every rank's host has issued a piece."""
        self._enter(graph.pieces, graph.spans[number])

    def _least_times(self) -> Factors:
        """Of each operation, a bound below what it is stretched by."""
        shortest = self._quantiles[0] if self._which is not None else 1.0
        kernels = np.array([one.min() * shortest for one in self.kernels])[self._step_of]
        host = min(1.0, float(self.host.min()))
        return np.where(self._is_kernel, kernels, host)

    def _enter(self, pieces: Sequence[Piece], span: range) -> None:
        """When the host comes to each piece, counted from the synchronisation before it."""
        spent: Ns | float = 0.0
        latest, most = 0.0, float(self.host.max())
        each = {
            op: (self.host_ns(op), most * (op.before_ns + op.host_ns) + 2.0)
            for op in dict.fromkeys(self.ops)
        }
        for at in span:
            self.begin[at] = spent
            piece = pieces[at]
            for op in self.ops[piece.first : piece.stop]:
                takes, at_most = each[op]
                spent = spent + takes
                latest += at_most
            self.issued_ns[at] = latest
            if piece.kind == Kind.SYNC:
                spent = latest = 0.0

    def _placed(self, of_ranks: Factors) -> Factors:
        """By (tensor-parallel peer, ranks of the same weights); one where all are equal."""
        if (of_ranks == of_ranks[0]).all():
            return of_ranks[:1].reshape(1, 1)
        return of_ranks.reshape(self.width, self.tp).T.copy()

    def scaled(self, ns: int) -> Ns | float:
        """What the hosts take for so much: one number where all are alike."""
        known = self._scaled.get(ns)
        if known is None:
            times = np.rint(ns * self.host)
            known = self._scaled[ns] = float(times[0, 0]) if times.size == 1 else times
        return known

    def host_ns(self, op: Op) -> Ns | float:
        """What an operation takes of the host."""
        return self.scaled(op.before_ns) + self.scaled(op.host_ns)

    def least_ns(self, piece: Piece) -> float:
        """Of a piece, on its streams: no rank takes less."""
        return float(self._least[piece.stop] - self._least[piece.first])

    def duration(self, i: int) -> Ns:
        """What an operation takes of its stream, on every rank."""
        op, step = self.ops[i], self._step_of[i]
        if self._which is not None and self._is_kernel[i]:
            one: Ns = self._launched(i, i + 1)[0]
            return one
        known = self._durations.get((op, step))
        if known is None:
            times = times_of(op, self.kernels[step], self.host)
            known = self._durations[op, step] = np.rint(op.duration_ns * times)
        return known

    def durations(self, piece: Piece) -> Ns:
        """What a run takes of its streams."""
        first, stop = piece.first, piece.stop
        if self._which is not None and self._kernels_before[stop] - self._kernels_before[first] == (
            stop - first
        ):
            each = self._launched(first, stop)
            found: Ns = each[0] if stop - first == 1 else np.add.reduce(each, axis=0)
            return found
        total = self.duration(first)
        for i in range(first + 1, stop):
            total = total + self.duration(i)
        return total

    def _launched(self, first: int, stop: int) -> Ns:
        """Kernels in a row of one step, each with its own draw on every rank."""
        assert self._which is not None, "kernels vary"
        row = self._kernels_before[first]
        times = self.kernels[self._step_of[first]]
        apart: Ns = self._quantiles.take(self._which[row : row + stop - first])
        if times.size > 1 or times[0, 0] != 1.0:
            apart *= times
        apart *= self._base[first:stop, None, None]
        np.rint(apart, out=apart)
        return apart
