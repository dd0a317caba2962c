"""Blocks: what travels between operators, and how a task's output is cut into them.

Real counterpart: ``python/ray/data/block.py``, ``_internal/execution/interfaces/ref_bundle.py``,
``_internal/output_buffer.py``. A block is a reference and its metadata; the driver never sees its
content.

Not modelled: schemas, and the metadata object that follows each block (its cost is in
``DataContext.per_block_ns``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import Ref

SAFE_FACTOR = 1.5
"""``MAX_SAFE_BLOCK_SIZE_FACTOR``: a block of so many targets is not cut."""


class Piece(NamedTuple):
    """What a map of a shuffle has for one partition."""

    content: Any
    rows: int
    size_bytes: int


class Block(NamedTuple):
    """One block of rows. ``ref`` None: rows that a read task has still to read."""

    rows: int
    size_bytes: int
    ref: Ref | None = None
    start: int = 0
    """First of its rows within the object, of a block that was cut without copying."""
    split: int = 0
    """The consumer it goes to, behind ``streaming_split``; of a shuffle, the slice it is."""
    owned: bool = True
    """The execution drops it once it has been used."""
    nodes: tuple[NodeID, ...] = ()
    """Where it was, of materialised data that somebody else owns."""
    pieces: tuple[Piece, ...] = ()
    """Of a shuffle of contents: those of the partitions of this slice, in order."""


class Part(NamedTuple):
    """Rows of an object's content, for code that looks at contents."""

    content: Any
    start: int
    rows: int


class Made(NamedTuple):
    """Metadata of a block that a task has handed over."""

    rows: int
    size_bytes: int
    pieces: tuple[Piece, ...] = ()
    """As ``Block.pieces``; contents go beside the simulation, their bytes are paid for."""


def sliced(block: Block, rows: int) -> tuple[Block, Block]:
    """The first rows of a block and the others; both are of the same object."""
    size_bytes = round(block.size_bytes * rows / block.rows)
    first = block._replace(rows=rows, size_bytes=size_bytes)
    other = block._replace(
        rows=block.rows - rows, size_bytes=block.size_bytes - size_bytes, start=block.start + rows
    )
    return first, other


def locations(process: CoreProcess, block: Block) -> tuple[NodeID, ...]:
    """Nodes that hold it, as its owner knows; none of what has still to be read."""
    known = process.peek_locations(block.ref) if block.ref is not None else None
    return block.nodes if known is None else tuple(known[1])


def total(blocks: Iterable[Block]) -> tuple[int, int]:
    """Rows and bytes of several."""
    rows = size_bytes = 0
    for block in blocks:
        rows += block.rows
        size_bytes += block.size_bytes
    return rows, size_bytes


def cut(rows: int, size_bytes: int, target_bytes: int) -> list[Made]:
    """Output of a task as ``BlockOutputBuffer`` cuts it: full blocks, then what is left.

    A rest that would leave the last block below ``SAFE_FACTOR`` targets stays with it.
    """
    if size_bytes <= target_bytes * SAFE_FACTOR or rows <= 1:
        return [Made(rows, size_bytes)]
    per_row = size_bytes / rows
    each = max(1, round(target_bytes / per_row))
    count = max(1, rows // each)
    rest = rows - count * each
    parts = [each] * count
    if rest and rest * per_row <= target_bytes * (SAFE_FACTOR - 1):
        parts[-1] += rest
    elif rest:
        parts.append(rest)
    return _weighed(parts, rows, size_bytes)


def evenly(rows: int, size_bytes: int, count: int) -> list[Made]:
    """Cut into ``count`` blocks of nearly equal rows, none without a row but of an empty one."""
    count = max(1, min(count, rows))
    parts = [rows * (i + 1) // count - rows * i // count for i in range(count)]
    return _weighed(parts, rows, size_bytes)


def shared_out(rows: int, size_bytes: int, count: int) -> list[Made]:
    """As ``numpy.array_split`` cuts: as ``evenly``, the larger ones first."""
    count = max(1, min(count, rows))
    each, rest = divmod(rows, count)
    return _weighed([each + (i < rest) for i in range(count)], rows, size_bytes)


def stepped(rows: int, size_bytes: int, count: int) -> list[Made]:
    """As ``RangeDatasource`` cuts: equal ones, as many as it takes, and what is left."""
    each = max(1, rows // count)
    rest = [rows % each] if rows % each else []
    return _weighed([each] * (rows // each) + rest or [0], rows, size_bytes)


def _weighed(parts: list[int], rows: int, size_bytes: int) -> list[Made]:
    """Bytes in proportion to rows, to the byte."""
    made, upto = [], 0
    for part in parts:
        before, upto = upto, upto + part
        share = size_bytes * upto // max(rows, 1) - size_bytes * before // max(rows, 1)
        made.append(Made(part, share if rows else size_bytes))
    return made
