"""Cut programs into pieces: operations in a row of which only the last is waited for.

What an operation waits for beside the one before it mostly follows from that one: on every stream,
what ended earlier on it is known to have ended too. Such waits are left out. Operations between
which nothing else enters and leaves are one *run*, whose end is ``max(start + total, floor)``. A
communication that ranks meet in, a synchronisation and the host's own work are pieces by
themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raysim.training.program import COMPUTE, Kind, Op, Program

_HOST = "host"
Meets = Callable[[Op], bool]
"""Whether a communication waits for others; what does not is a run's."""


@dataclass(slots=True)
class Piece:
    """Operations ``first`` to ``stop`` of one program."""

    program: int
    """Its number among those of the step."""
    kind: Kind
    """``LOCAL``: a run; else that of its one operation."""
    first: int
    stop: int
    waits: tuple[int, ...] = ()
    """Pieces whose ends its first operation waits for."""
    host: int = -1
    """The piece whose end the host went on from: the latest synchronisation; -1: the start."""


def cut(program: Program, number: int, meets: Meets, offset: int) -> list[Piece]:
    """The pieces of a program, in its order; the first is number ``offset`` of all."""
    waits = _essential(program)
    distinct = {op: _stands_alone(op, meets) for op in dict.fromkeys(program.ops)}
    alone = [distinct[op] for op in program.ops]
    ends = _ends(program, waits, alone)
    pieces: list[Piece] = []
    of_op: dict[int, int] = {}
    host, first = -1, 0
    for i, op in enumerate(program.ops):
        if not ends[i]:
            continue
        kind = op.kind if alone[i] else Kind.LOCAL
        before = tuple(of_op[w] for w in waits[first])
        pieces.append(Piece(number, kind, first, i + 1, before, host))
        of_op[i] = offset + len(pieces) - 1
        if kind == Kind.SYNC:
            host = of_op[i]
        first = i + 1
    return pieces


def _stands_alone(op: Op, meets: Meets) -> bool:
    if op.kind in (Kind.SYNC, Kind.HOST):
        return True
    return op.kind != Kind.LOCAL and meets(op)


def _essential(program: Program) -> list[tuple[int, ...]]:
    """Of each operation, what it waits for and does not follow from the rest."""
    found: list[tuple[int, ...]] = []
    reach: list[dict[str, int]] = []
    """With each operation's end, how far streams other than its own are known to have come."""
    tail: dict[str, int] = {}
    stream_of = {op: _stream(op) for op in dict.fromkeys(program.ops)}
    streams = [stream_of[op] for op in program.ops]
    for i, op in enumerate(program.ops):
        stream = streams[i]
        previous = tail.get(stream)
        kept: tuple[int, ...] = () if previous is None else (previous,)
        known = {} if previous is None else reach[previous]
        if op.back:
            after = {i - back for back in op.back}.union(kept)
            kept, known = _reduced(sorted(after, reverse=True), streams, reach)
        found.append(kept)
        reach.append(known)
        if stream != _HOST:
            tail[stream] = i
    return found


def _stream(op: Op) -> str:
    return _HOST if op.kind in (Kind.SYNC, Kind.HOST) else op.stream


def _reduced(
    after: list[int], streams: list[str], reach: list[dict[str, int]]
) -> tuple[tuple[int, ...], dict[str, int]]:
    """Those that no later one has waited for, and how far every stream is known to have come."""
    last = after[0]
    kept, known = [last], {**reach[last], streams[last]: last}
    for w in after[1:]:
        if known.get(streams[w], -1) >= w:
            continue
        kept.append(w)
        known[streams[w]] = w
        for name, at in reach[w].items():
            if known.get(name, -1) < at:
                known[name] = at
    return tuple(kept), known


def _ends(program: Program, waits: list[tuple[int, ...]], alone: list[bool]) -> list[bool]:
    """Whether a piece ends with an operation."""
    n = len(program.ops)
    ends = [False] * n
    for stop in program.step_ends:
        ends[stop - 1] = True
    for stop in program.backward_ends:
        last = next(i for i in range(stop - 1, -1, -1) if program.ops[i].stream == COMPUTE)
        ends[last] = True
    for i in range(n):
        goes_on = waits[i] == (i - 1,) and not alone[i] and not alone[i - 1]
        if alone[i]:
            ends[i] = True
        if not goes_on:
            if i:
                ends[i - 1] = True
            for w in waits[i]:
                ends[w] = True
    return ends
