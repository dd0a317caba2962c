"""Many variants of a step at once: the same graph with other durations, one column for each.

All is whole nanoseconds, so the ends are those the executor finds, bit for bit, where no two
communications are on one link at a time. Whether any are is found as well, for then the executor
must be asked.

Of a run only two numbers count: what it takes in all, and when it ends at the earliest because its
host issues it no earlier. Runs of equal operations, as every micro-batch has, share both. Most
hosts are far ahead of their GPUs: where bounds over all variants show that, they are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from raysim.training.graph.link_conflicts import Streams, conflicts
from raysim.training.graph.step_graph import Node, StepGraph
from raysim.training.program import Kind, Op

Ns = npt.NDArray[np.int64]
AT_ONCE = 1024
"""Variants that are looked at together."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Nanoseconds of every distinct operation (rows) in every variant (columns).

    One column says that all variants are alike.
    """

    duration_ns: Ns
    """On its stream; of a communication, with its links to itself."""
    host: Ns
    before: Ns

    @property
    def variants(self) -> int:
        """How many there are."""
        return max(int(a.shape[1]) for a in (self.duration_ns, self.host, self.before))

    def part(self, columns: slice) -> Costs:
        """Some variants."""
        own = (self.duration_ns, self.host, self.before)
        return Costs(*(a if a.shape[1] == 1 else a[:, columns] for a in own))


@dataclass(frozen=True, slots=True)
class Ends:
    """When pieces of a graph end in every variant."""

    graph: StepGraph
    end_ns: dict[int, Ns]
    """Of the pieces that were asked for."""
    contended: npt.NDArray[np.bool_]
    """Of each variant, whether communications may have slowed each other: ask the executor."""

    def step_ns(self) -> Ns:
        """Duration of each step (rows), over all ranks."""
        steps = range(len(self.graph.programs[0].step_ends))
        ends = [np.max([self.end_ns[at] for at in self.graph.tips(step)], axis=0) for step in steps]
        return np.diff(np.array(ends), axis=0, prepend=0)

    def backward_end_ns(self, program: int, count: int) -> Ns:
        """As ``Timeline.backward_end_ns``."""
        return self.end_ns[self.graph.backward_end(program, count)]


@dataclass(slots=True)
class _Runs:
    """Of every distinct run, in every variant."""

    total: Ns
    """Its time on streams."""
    floor: Ns
    """Its earliest end after the host begins it."""
    on_host: Ns
    """What the host takes to issue it."""


@dataclass(slots=True)
class _Move:
    """What is worked out for one node, for all variants."""

    node: Node
    run: int
    issues: list[int]
    """Pieces whose host may be late for the start."""
    floors: list[int]
    """Pieces whose host may be late for the end."""
    last_use: list[int]
    """Pieces whose ends nobody asks for afterwards."""


class Recosting:
    """A step's graph, ready to be priced.

    Parameters
    ----------
    graph
        What waits for what.
    keep
        Pieces whose ends are of interest; None: those that steps and backward passes end with.
    """

    def __init__(self, graph: StepGraph, keep: Collection[int] | None = None) -> None:
        self.graph = graph
        self.keep = frozenset(graph.ends() if keep is None else keep)
        self.ops: list[tuple[Op, int]] = []
        """Operations that differ, and the number of the program each is in."""
        self._run_ops: list[npt.NDArray[np.intp]] = []
        self._run_of: list[int] = []
        self.rows = self._numbered()
        """Of each program's operations, which of ``ops`` each is: its row in costs."""
        runs: dict[tuple[int, bytes], int] = {}
        for piece in graph.pieces:
            ops = self.rows[piece.program][piece.first : piece.stop]
            run = runs.setdefault((piece.kind, ops.tobytes()), len(self._run_ops))
            if run == len(self._run_ops):
                self._run_ops.append(ops)
            self._run_of.append(run)

    def _numbered(self) -> list[npt.NDArray[np.intp]]:
        """Operations that differ, and where each program has them."""
        numbers: dict[tuple[object, ...], int] = {}
        found = []
        for number, program in enumerate(self.graph.programs):
            known: dict[int, int] = {}
            for op in program.ops:
                if id(op) in known:
                    continue
                call = op.call and op.call[:4]
                key = (
                    number, op.kind, op.stream, op.name, op.category, op.duration_ns, op.host_ns,
                    op.before_ns, call,
                )  # fmt: skip
                known[id(op)] = numbers.setdefault(key, len(self.ops))
                if known[id(op)] == len(self.ops):
                    self.ops.append((op, number))
            found.append(np.array([known[id(op)] for op in program.ops], dtype=np.intp))
        return found

    @cached_property
    def costs(self) -> Costs:
        """As compiled: one variant."""
        ranks = [program.rank for program in self.graph.programs]
        duration = [self.graph.duration_ns(op, ranks[number]) for op, number in self.ops]
        host = [op.host_ns for op, _ in self.ops]
        before = [op.before_ns for op, _ in self.ops]
        return Costs(*(np.array(x, dtype=np.int64)[:, None] for x in (duration, host, before)))

    def ends(self, costs: Costs) -> Ends:
        """Price every variant."""
        parts = [self._some(costs.part(columns)) for columns in _columns(costs.variants)]
        return Ends(
            self.graph,
            {at: np.concatenate([end[at] for end, _ in parts]) for at in parts[0][0]},
            np.concatenate([contended for _, contended in parts]),
        )

    def _some(self, costs: Costs) -> tuple[dict[int, Ns], npt.NDArray[np.bool_]]:
        """Of as many variants as are looked at together."""
        runs, variants = self._priced(costs), costs.variants
        begin = self._begins(runs.on_host)
        rows: dict[int, Ns] = {}
        met: dict[int, tuple[Ns, Ns]] = {}
        watched = {at for users in self._conflicts for at in users}
        for move in self._moves(runs, begin, costs):
            if move.node.meets:
                span = self._meet(move, rows, runs, begin, costs)
                if move.node.pieces[0] in watched:
                    met[move.node.pieces[0]] = span
            else:
                self._run(move, rows, runs, begin)
            for at in move.last_use:
                del rows[at]
        ends = {at: np.broadcast_to(row, (variants,)) for at, row in rows.items()}
        contended = np.zeros(variants, dtype=np.bool_)
        for users in self._conflicts:
            contended |= _overlap({at: met[at] for at in users}, users, variants)
        return ends, contended

    def _run(self, move: _Move, rows: dict[int, Ns], runs: _Runs, begin: Ns) -> None:
        at, waits = move.node.pieces[0], move.node.waits
        piece = self.graph.pieces[at]
        row = None
        if waits:
            row = _latest([rows[w] for w in waits])
            if piece.kind != Kind.SYNC:
                row = row + runs.total[move.run]
        if move.floors or row is None:
            floor = begin[at] + runs.floor[move.run]
            if piece.host >= 0:
                floor += rows[piece.host]
            row = floor if row is None else np.maximum(row, floor)
        rows[at] = row

    def _meet(
        self, move: _Move, rows: dict[int, Ns], runs: _Runs, begin: Ns, costs: Costs
    ) -> tuple[Ns, Ns]:
        """Ends of all that take part; when the last arrived, and the transfer ended."""
        arrivals = [rows[w] for w in move.node.waits]
        for at in move.issues:
            before = costs.before[self._run_ops[self._run_of[at]][0]]
            arrivals.append(self._after_host(at, begin[at] + before, rows))
        ready = _latest(arrivals)
        end = ready + runs.total[move.run]
        for at in move.node.pieces:
            rows[at] = end
        for at in move.floors:
            floor = begin[at] + runs.on_host[self._run_of[at]]
            rows[at] = np.maximum(end, self._after_host(at, floor, rows))
        return ready, end

    def _after_host(self, at: int, since: Ns, rows: dict[int, Ns]) -> Ns:
        """A moment counted from the synchronisation that the host went on from."""
        host = self.graph.pieces[at].host
        return since if host < 0 else since + rows[host]

    def _moves(self, runs: _Runs, begin: Ns, costs: Costs) -> Iterator[_Move]:
        """Nodes in order, with the hosts that may be late in some variant."""
        least = runs.total.min(axis=1).tolist()
        floor_low, floor_high = runs.floor.min(axis=1).tolist(), runs.floor.max(axis=1).tolist()
        begin_low, begin_high = begin.min(axis=1).tolist(), begin.max(axis=1).tolist()
        before_high = costs.before.max(axis=1).tolist()
        low: dict[int, int] = {}
        """No variant ends a piece earlier."""
        pieces, run_of = self.graph.pieces, self._run_of
        for node, last_use in zip(self.graph.nodes, self._last_uses, strict=True):
            start = max([low[w] for w in node.waits], default=-1)
            run = run_of[node.pieces[0]]
            sync = pieces[node.pieces[0]].kind == Kind.SYNC
            end = start if sync or not node.waits else start + least[run]
            late = list(node.pieces)
            issues = floors = late
            if node.meets:
                issues = [
                    at
                    for at in late
                    if pieces[at].host >= 0
                    or begin_high[at] + before_high[self._run_ops[run_of[at]][0]] > start
                ]
            floors = [
                at
                for at in late
                if pieces[at].host >= 0 or begin_high[at] + floor_high[run_of[at]] > end
            ]
            for at in node.pieces:
                low[at] = max(end, begin_low[at] + floor_low[run_of[at]])
            yield _Move(node, run, issues, floors, last_use)

    @cached_property
    def _last_uses(self) -> list[list[int]]:
        """After each node, the pieces that are not looked at again."""
        return self.graph.last_uses(self.keep)

    @cached_property
    def _flat(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Operations of all distinct runs in a row; where each run begins, and its last."""
        sizes = np.array([len(ops) for ops in self._run_ops], dtype=np.intp)
        stops = np.cumsum(sizes)
        return np.concatenate(self._run_ops), stops - sizes, stops - 1

    @cached_property
    def _conflicts(self) -> list[dict[int, Streams]]:
        return conflicts(self.graph)

    @cached_property
    def _meeting_runs(self) -> npt.NDArray[np.intp]:
        meets = {self._run_of[at] for node in self.graph.nodes if node.meets for at in node.pieces}
        return np.array(sorted(meets), dtype=np.intp)

    def _priced(self, costs: Costs) -> _Runs:
        """Of every distinct run what counts."""
        ops, starts, last = self._flat
        duration = costs.duration_ns[ops]
        done = np.cumsum(duration, axis=0)
        issued = np.cumsum((costs.before + costs.host)[ops], axis=0)
        on_host = np.diff(issued[last], axis=0, prepend=0)
        # Each operation ends no earlier than it is issued and has run, or its call has returned.
        own = np.maximum(issued - costs.host[ops] + duration, issued) - done
        floor = np.maximum.reduceat(own, starts, axis=0) + done[last] - (issued[last] - on_host)
        floor[self._meeting_runs] = on_host[self._meeting_runs]
        return _Runs(np.diff(done[last], axis=0, prepend=0), floor, on_host)

    def _begins(self, on_host: Ns) -> Ns:
        """When the host comes to each piece, counted from the synchronisation before it."""
        spent = on_host[self._run_of]
        begin = np.empty_like(spent)
        for span in self.graph.spans:
            syncs = [at + 1 for at in span if self.graph.pieces[at].kind == Kind.SYNC]
            bounds = [span.start, *syncs, span.stop]
            for first, stop in pairwise(bounds):
                rows = slice(first, stop)
                np.cumsum(spent[rows], axis=0, out=begin[rows])
                begin[rows] -= spent[rows]
        return begin


def _overlap(
    spans: Mapping[int, tuple[Ns, Ns]], streams: Mapping[int, Streams], variants: int
) -> npt.NDArray[np.bool_]:
    """Whether two of these transfers were under way at one time."""
    order = sorted(spans, key=lambda at: tuple(int(x[0]) for x in spans[at]))
    found = np.zeros(variants, dtype=np.bool_)
    for one, other in pairwise(order):  # in the order of the first variant, mostly that of all
        if streams[one].isdisjoint(streams[other]):
            found |= spans[other][0] < spans[one][1]
    doubtful = np.flatnonzero(found)
    if len(doubtful):
        begin, end = (
            np.array([np.broadcast_to(spans[at][side], (variants,))[doubtful] for at in spans])
            for side in (0, 1)
        )
        order_of = np.argsort(begin, axis=0, kind="stable")
        begin, end = (np.take_along_axis(x, order_of, axis=0) for x in (begin, end))
        found[doubtful] = (begin[1:] < end[:-1]).any(axis=0)
    return found


def _columns(variants: int) -> Iterator[slice]:
    for start in range(0, variants, AT_ONCE):
        yield slice(start, start + AT_ONCE)


def _latest(rows: list[Ns]) -> Ns:
    """The largest of each column."""
    found = rows[0]
    for row in rows[1:]:
        found = np.maximum(found, row)
    return found
