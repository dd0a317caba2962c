"""PyTorch's CUDA caching allocator, emulated: blocks, segments, what is cached and what is lost.

Source: torch 2.13, ``c10/cuda/CUDACachingAllocator.cpp`` (``DeviceCachingAllocator``). Requests are
rounded to 512 bytes and served from the smallest cached block that is large enough, of the same
stream and pool; a block is split where the rest is worth keeping; neighbours merge when freed. What
the cache cannot serve is asked of the driver: 2 MiB for requests up to 1 MiB, 20 MiB up to 10 MiB,
multiples of 2 MiB beyond. When the driver refuses, cached blocks are given back and it is asked
again.

Counters are torch's: ``allocated`` sums blocks in use, with their rounding and what was not worth
splitting off; ``reserved`` sums segments.

Not emulated: private pools of CUDA graphs, address space running out. Addresses only break ties
between blocks of equal size; the driver's are taken to rise.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable
from itertools import chain

from raysim.training.allocator.blocks import (
    ADDRESS_BITS,
    EXPANDABLE_BYTES,
    Block,
    Pool,
    absorb,
    insert_after,
    insert_before,
    keep_unmapped,
    least_room,
    lowest_room,
    runs,
)
from raysim.training.allocator.config import (
    MIN_BLOCK_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorConfig,
)
from raysim.units import MIB

NEVER = 1 << 60
"""More than any block leaves over."""

Request = tuple[int, Pool, int, int]
Heard = Callable[[str, int, int, Hashable], None]
"""Told of a segment: what happens, its address, bytes and stream, in torch's words."""


class OutOfMemory(Exception):  # noqa: N818  (torch's name for it)
    """The driver has too little memory even after everything cached was given back."""

    def __init__(self, asked_bytes: int, free_bytes: int) -> None:
        super().__init__(f"tried to allocate {asked_bytes} bytes, {free_bytes} are free")
        self.asked_bytes = asked_bytes
        """What was asked of the driver: the segment, not the tensor."""
        self.free_bytes = free_bytes


class Allocator:
    """The allocator of one process on one device.

    Parameters
    ----------
    config
        ``PYTORCH_CUDA_ALLOC_CONF``.
    capacity_bytes
        What the driver can hand out in all; None: whatever is asked.
    """

    def __init__(
        self, config: AllocatorConfig | None = None, *, capacity_bytes: int | None = None
    ) -> None:
        self.config = config = config or AllocatorConfig()
        self.capacity_bytes = capacity_bytes
        share = config.per_process_memory_fraction
        self.allowed_bytes = None if share == 1.0 or not capacity_bytes else share * capacity_bytes
        """``allowed_memory_maximum``; without it garbage collection never runs."""
        self.max_split = MIB * config.max_split_size_mb if config.max_split_size_mb else None
        self.expandable = config.expandable_segments
        self.pools: dict[tuple[Hashable, bool], Pool] = {}
        self.pending: dict[Block, set[Hashable]] = {}
        """Freed, and still used by these streams (``record_stream``)."""
        self.allocated_bytes = self.reserved_bytes = self.requested_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.driver_calls = 0
        """``num_device_alloc``: segments made, or ranges mapped."""
        self.retries = 0
        """``num_alloc_retries``: times the whole cache was given back for want of memory."""
        self.segments = 0
        """Made by ``cudaMalloc`` and not given back; expandable ones are not counted."""
        self.simple = not self.expandable and self.max_split is None
        """The smallest cached block that is large enough is always the one to take."""
        self.counts_age = bool(self.allowed_bytes and config.garbage_collection_threshold)
        self.heard: Heard | None = None
        self._requests: dict[tuple[int, Hashable], Request] = {}
        self._lookups = {True: 0, False: 0}
        """Of small and of large blocks, over all streams."""
        self._next_address = 0

    def malloc(self, size_bytes: int, stream: Hashable = 0) -> Block:
        """A block for a tensor of ``size_bytes`` on ``stream``.

        Raises
        ------
        OutOfMemory
            Neither cache nor driver has it.
        """
        request = self._requests.get((size_bytes, stream)) or self._request(size_bytes, stream)
        size, pool, search, splits_from = request
        keys = pool.keys
        at = bisect_left(keys, search)
        if self.counts_age:
            self._lookups[pool.is_small] += 1
        if at < len(keys) and (self.simple or (at := self._choose(pool, at, size)) >= 0):
            block = pool.blocks.pop(keys.pop(at))
        else:
            block = self._new(pool, size)
        block.free = False
        rest = block.size - size
        if rest >= splits_from:
            left = Block(pool, block.address + size, rest)
            block.size = size
            left.prev = block
            left.next = after = block.next
            if after is not None:
                after.prev = left
            block.next = left
            self._add(left)
        block.requested = size_bytes
        self.requested_bytes += size_bytes
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block, used_on: set[Hashable] | None = None) -> None:
        """Give a block back; it is reusable once ``done`` was called for every stream using it."""
        self.allocated_bytes -= block.size
        if used_on:
            self.pending[block] = used_on
        else:
            self._cache(block)

    def done(self, stream: Hashable) -> None:
        """What was freed so far is no longer used by ``stream``: its events are complete."""
        for block in [b for b, used_on in self.pending.items() if stream in used_on]:
            self.pending[block].discard(stream)
            if not self.pending[block]:
                self._settle(block)

    def touch(self, size_bytes: int, stream: Hashable = 0) -> bool:
        """Allocate and free at once where that leaves no trace but in the peak; else False.

        A block split for it would merge again with the rest it left.
        """
        if not self.simple or self.counts_age:
            return False
        request = self._requests.get((size_bytes, stream)) or self._request(size_bytes, stream)
        size, pool, search, splits_from = request
        at = bisect_left(pool.keys, search)
        if at == len(pool.keys):
            return False
        found = pool.keys[at] >> ADDRESS_BITS
        held = self.allocated_bytes + (size if found - size >= splits_from else found)
        if held > self.peak_allocated_bytes:
            self.peak_allocated_bytes = held
        return True

    @property
    def inactive_split_bytes(self) -> int:
        """Cached in pieces of segments that are partly in use: it cannot be given back.

        As in torch, expandable segments do not count.
        """
        if self.expandable:
            return 0
        pools = self.pools.values()
        return sum(b.size for pool in pools for b in pool.blocks.values() if b.split)

    def segments_now(self, live: Iterable[Block]) -> list[list[Block]]:
        """Blocks of every segment by address, given those in use."""
        cached = (b for pool in self.pools.values() for b in pool.blocks.values())
        found: dict[int, list[Block]] = {}
        for block in chain(live, self.pending, cached):
            if block.address not in found:
                found |= {b.address: run for run in runs(block) for b in run}
        return [run for address, run in sorted(found.items()) if address == run[0].address]

    def _request(self, size_bytes: int, stream: Hashable) -> Request:
        """Rounded size, pool, where to look among its blocks, and what rest is split off."""
        size = self.config.round_bytes(size_bytes)
        pool = self._pool(stream, size)
        if pool.is_small or self.expandable:
            splits_from = MIN_BLOCK_BYTES
        elif self.max_split is not None and size >= self.max_split:
            splits_from = NEVER
        else:
            splits_from = SMALL_BYTES + 1
        request = size, pool, size << ADDRESS_BITS, splits_from
        self._requests[size_bytes, stream] = request
        return request

    def _pool(self, stream: Hashable, size: int) -> Pool:
        is_small = size <= SMALL_BYTES
        pool = self.pools.get((stream, is_small))
        if pool is None:
            granule = SMALL_SEGMENT_BYTES if is_small else self.config.large_segment_size_mb * MIB
            base = len(self.pools) * EXPANDABLE_BYTES
            pool = Pool(base, is_small=is_small, granule=granule, stream=stream)
            self.pools[stream, is_small] = pool
            if self.expandable:
                beyond = Block(pool, base, EXPANDABLE_BYTES)
                beyond.mapped = False
                pool.unmapped.append(beyond)
        return pool

    def _choose(self, pool: Pool, at: int, size: int) -> int:
        """From the smallest cached block that is large enough on, the one to take; -1: none.

        ``get_free_block`` where segments expand, or large blocks are not split.
        """
        if self.expandable:
            at = least_room(pool, at)
        found = pool.keys[at] >> ADDRESS_BITS
        return at if self.max_split is None or self._may_serve(size, found) else -1

    def _may_serve(self, size: int, found: int) -> bool:
        """Blocks too large to split serve large requests only, and not much smaller ones."""
        assert self.max_split is not None
        if size < self.max_split:
            return found < self.max_split
        rounding = self.config.max_non_split_rounding_mb or self.config.large_segment_size_mb
        return found < size + rounding * MIB

    def _new(self, pool: Pool, size: int) -> Block:
        """A block from the driver, if need be after giving back what is cached."""
        asked = self.config.segment_bytes(size)
        if self.counts_age:
            self._collect_garbage()
        block = self._ask(pool, size, asked)
        if block is None and self._release_oversize(pool, size):
            block = self._ask(pool, size, asked)
        if block is None:
            self.release_cached()
            self.retries += 1
            block = self._ask(pool, size, asked)
        if block is None:
            raise OutOfMemory(asked, self._driver_free_bytes())
        return block

    def _driver_free_bytes(self) -> int:
        assert self.capacity_bytes is not None, "an endless driver refuses nothing"
        return self.capacity_bytes - self.reserved_bytes

    def _ask(self, pool: Pool, size: int, asked: int) -> Block | None:
        """``cudaMalloc`` of a segment, or more of the expandable one mapped."""
        if self.allowed_bytes is not None and self.reserved_bytes + asked > self.allowed_bytes:
            return None
        if self.expandable:
            return self._expand(pool, size)
        if not self._reserve(asked):
            return None
        block = Block(pool, self._next_address, asked)
        self._next_address += asked
        self.segments += 1
        if self.heard is not None:
            self.heard("segment_alloc", block.address, asked, pool.stream)
        return block

    def _reserve(self, size: int) -> bool:
        """Whether the driver has so much; then it is reserved."""
        if self.capacity_bytes is not None and self.reserved_bytes + size > self.capacity_bytes:
            return False
        self.reserved_bytes += size
        self.driver_calls += 1
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        return True

    def _add(self, block: Block) -> None:
        """Cache a block."""
        pool = block.pool
        key = block.size << ADDRESS_BITS | block.address
        insort(pool.keys, key)
        pool.blocks[key] = block
        if self.counts_age:
            block.born = self._lookups[pool.is_small]

    def _cache(self, block: Block) -> None:
        """A block that nobody uses any more, merged with cached neighbours (``free_block``)."""
        self.requested_bytes -= block.requested
        pool, before, after = block.pool, block.prev, block.next
        block.free = True
        if before is not None and before.free and before.mapped:
            pool.remove(before)
            absorb(block, before)
        if after is not None and after.free and after.mapped:
            pool.remove(after)
            absorb(block, after)
        self._add(block)

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Give back one cached block that must not be split, or several, for a request.

        ``release_available_cached_blocks``; whether that is enough.
        """
        if self.max_split is None or self.expandable:
            return False
        wanted = max(size, self.max_split)
        at = bisect_left(pool.keys, wanted << ADDRESS_BITS)
        if at < len(pool.keys):
            self._release(pool.blocks[pool.keys[at]])
            return True
        released = 0
        while released < wanted and pool.keys:
            largest = pool.blocks[pool.keys[-1]]
            if largest.size < self.max_split:
                break
            released += largest.size
            self._release(largest)
        return released >= wanted

    def release_cached(self) -> None:
        """Give back every segment without a block in use, waiting for other streams first.

        ``torch.cuda.empty_cache``, and what happens when memory runs out.
        """
        for block in list(self.pending):
            self._settle(block)
        for pool in self.pools.values():
            for block in list(pool.blocks.values()):
                if self.expandable:
                    self._unmap(block)
                elif not block.split:
                    self._release(block)

    def _settle(self, block: Block) -> None:
        """No stream uses a freed block any more."""
        del self.pending[block]
        self._cache(block)

    def _release(self, block: Block) -> None:
        """``cudaFree`` of a whole segment."""
        block.pool.remove(block)
        self.reserved_bytes -= block.size
        self.segments -= 1
        if self.heard is not None:
            self.heard("segment_free", block.address, block.size, block.pool.stream)

    def _collect_garbage(self) -> None:
        """Give back old cached segments above the threshold (``garbage_collect_cached_blocks``)."""
        assert self.allowed_bytes is not None
        goal = int(self.config.garbage_collection_threshold * self.allowed_bytes)
        excess = self.reserved_bytes - goal
        now = self._lookups[False]
        large = [p for p in self.pools.values() if not p.is_small]
        whole = [b for p in large for b in p.blocks.values() if not b.split]
        while excess > 0 and whole:
            average = sum(now - b.born for b in whole) / len(whole)
            old = [b for b in whole if now - b.born >= average]
            for block in old:
                excess -= block.size
                self._release(block)
            whole = [b for b in whole if now - b.born < average]

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """Memory mapped at the lowest address with room (``try_allocate_expandable_block``)."""
        block = lowest_room(pool, size)
        if not block.mapped:
            if not self._map(block, min(block.size, size)):
                return None
            block = self._joined(block)
        while block.size < size:
            beyond = block.next
            assert beyond is not None, "the address space does not end"
            if not self._map(beyond, min(size - block.size, beyond.size)):
                return None
            block = self._joined(beyond)
        pool.remove(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """Back the beginning of an address range with memory, granule by granule."""
        pool = block.pool
        mapped = -(-size // pool.granule) * pool.granule
        if not self._reserve(mapped):
            return False
        pool.unmapped.remove(block)
        block.mapped = True
        if self.heard is not None:
            self.heard("segment_map", block.address, mapped, pool.stream)
        if mapped < block.size:
            beyond = Block(pool, block.address + mapped, block.size - mapped)
            beyond.mapped = False
            block.size = mapped
            insert_after(block, beyond)
            keep_unmapped(beyond)
        return True

    def _joined(self, block: Block) -> Block:
        """Freshly mapped memory, cached together with its cached neighbours."""
        for near in (block.prev, block.next):
            if near is not None and near.free and near.mapped:
                block.pool.remove(near)
                absorb(block, near)
        self._add(block)
        return block

    def _unmap(self, block: Block) -> None:
        """Give back the whole granules of a cached block (``unmap_block``)."""
        pool, end = block.pool, block.address + block.size
        first = -(-(block.address - pool.base) // pool.granule) * pool.granule + pool.base
        last = (end - pool.base) // pool.granule * pool.granule + pool.base
        if first >= last:
            return
        pool.remove(block)
        if first > block.address:
            before = Block(pool, block.address, first - block.address)
            insert_before(block, before)
            self._add(before)
        if last < end:
            after = Block(pool, last, end - last)
            insert_after(block, after)
            self._add(after)
        block.address, block.size, block.mapped = first, last - first, False
        self.reserved_bytes -= block.size
        if self.heard is not None:
            self.heard("segment_unmap", block.address, block.size, pool.stream)
        for near in (block.prev, block.next):
            if near is not None and not near.mapped:
                pool.unmapped.remove(near)
                absorb(block, near)
        keep_unmapped(block)
