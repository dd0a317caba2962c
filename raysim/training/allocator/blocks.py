"""Blocks of the caching allocator, the pools they are cached in, and how they join and part.

Source: torch 2.13, ``c10/cuda/CUDACachingAllocator.cpp`` (``Block``, ``BlockPool``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator

ADDRESS_BITS = 48
"""Free blocks are kept sorted by one integer: size, then address."""
EXPANDABLE_BYTES = 1 << 42
"""Address space of an expandable segment; torch takes 9/8 of the GPU's memory, then another."""


class Block:
    """A piece of a segment: in use, or cached."""

    __slots__ = (
        "address", "born", "free", "mapped", "next", "pool", "prev", "requested", "size",
    )  # fmt: skip

    def __init__(self, pool: Pool, address: int, size: int) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.requested = 0
        self.prev: Block | None = None
        self.next: Block | None = None
        self.free = True
        """Cached and ready: neither in use nor waiting for another stream."""
        self.mapped = True
        """Backed by memory; only ranges of an expandable segment may not be."""
        self.born = 0
        """Look-ups there had been when it was cached: its age, for garbage collection."""

    @property
    def split(self) -> bool:
        """Whether its segment holds other blocks."""
        return self.prev is not None or self.next is not None


class Pool:
    """Free blocks of one stream, small or large."""

    __slots__ = ("base", "blocks", "granule", "is_small", "keys", "stream", "unmapped")

    def __init__(self, base: int, *, is_small: bool, granule: int, stream: Hashable = 0) -> None:
        self.stream = stream
        self.base = base
        """Where the addresses of its expandable segment begin."""
        self.is_small = is_small
        self.granule = granule
        """Bytes that an expandable segment maps at a time."""
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        """Address ranges of the expandable segment without memory, by address."""

    def remove(self, block: Block) -> None:
        """Take a block out of the cache."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]


def least_room(pool: Pool, at: int) -> int:
    """From a place of the cache on, the block that can grow least.

    What can expand counts as large as it can become, so that it is not taken first.
    """
    room = growth(pool.blocks[pool.keys[at]])
    while at + 1 < len(pool.keys):
        following = growth(pool.blocks[pool.keys[at + 1]])
        if following >= room:
            break
        at, room = at + 1, following
    return at


def growth(block: Block) -> int:
    """Bytes a block has, or could grow to."""
    beyond = block.next
    return block.size + (beyond.size if beyond is not None and not beyond.mapped else 0)


def lowest_room(pool: Pool, size: int) -> Block:
    """The lowest free address range, mapped or not, with room for ``size``."""
    for hole in pool.unmapped:
        before = hole.prev
        first = before if before is not None and before.free else hole
        room, at = 0, first
        while room < size and at is not None and at.free:
            room += at.size
            following = at.next
            if following is None:
                break
            at = following
        if room >= size:
            return first
    raise AssertionError("the last address range is endless")


def insert_after(block: Block, new: Block) -> None:
    """Put a block behind another one of its segment."""
    new.prev, new.next = block, block.next
    if new.next is not None:
        new.next.prev = new
    block.next = new


def insert_before(block: Block, new: Block) -> None:
    """Put a block before another one of its segment."""
    new.prev, new.next = block.prev, block
    if new.prev is not None:
        new.prev.next = new
    block.prev = new


def absorb(block: Block, near: Block) -> None:
    """Merge a neighbour into a block; the neighbour is gone."""
    if block.prev is near:
        block.address = near.address
        block.prev = near.prev
        if block.prev is not None:
            block.prev.next = block
    else:
        block.next = near.next
        if block.next is not None:
            block.next.prev = block
    block.size += near.size


def runs(block: Block) -> Iterator[list[Block]]:
    """The segments of a block's chain: neighbours that are backed by memory, by address."""
    first = block
    while first.prev is not None:
        first = first.prev
    run: list[Block] = []
    at: Block | None = first
    while at is not None:
        if at.mapped:
            run.append(at)
        elif run:
            yield run
            run = []
        at = at.next
    if run:
        yield run


def keep_unmapped(block: Block) -> None:
    """Enter an address range among those without memory."""
    insort(block.pool.unmapped, block, key=lambda b: b.address)
