"""The emulated allocator under any sequence of requests: nothing overlaps, nothing is lost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raysim.training.allocator.blocks import Block
from raysim.training.allocator.caching import Allocator, OutOfMemory
from raysim.training.allocator.config import AllocatorConfig
from raysim.units import MIB

SIZES = st.one_of(
    st.integers(1, 4096), st.integers(MIB // 2, 3 * MIB), st.integers(3 * MIB, 90 * MIB)
)
MOVES = st.lists(
    st.tuples(st.booleans(), SIZES, st.integers(0, 10**6), st.sampled_from("ab")), max_size=60
)
CONFIGS = st.builds(
    AllocatorConfig,
    expandable_segments=st.booleans(),
    max_split_size_mb=st.sampled_from([None, 32]),
    roundup_power2_divisions=st.sampled_from([(), (4,) * 16]),
)


def play(allocator: Allocator, moves: list[Any]) -> list[Block]:
    """Allocate, or free one of the live blocks, now and then on behalf of another stream."""
    live: list[Block] = []
    for gives_back, size, which, stream in moves:
        if gives_back and live:
            late = {"late"} if which % 5 == 0 else None
            allocator.free(live.pop(which % len(live)), late)
        else:
            try:
                live.append(allocator.malloc(size, stream))
            except OutOfMemory:
                continue
        if which % 7 == 0:
            allocator.done("late")
    return live


def every_block(allocator: Allocator, live: list[Block]) -> list[Block]:
    """Live, cached and unmapped ones, and those waiting for a stream."""
    pools = allocator.pools.values()
    cached = [b for pool in pools for b in pool.blocks.values()]
    unmapped = [b for pool in pools for b in pool.unmapped]
    return [*live, *allocator.pending, *cached, *unmapped]


@settings(max_examples=120, deadline=None)
@given(MOVES, CONFIGS, st.sampled_from([None, 300 * MIB]))
def test_invariants(moves: list[Any], config: AllocatorConfig, capacity: int | None) -> None:
    allocator = Allocator(config, capacity_bytes=capacity)
    live = play(allocator, moves)
    blocks = every_block(allocator, live)
    assert len({id(b) for b in blocks}) == len(blocks)
    for block in blocks:
        # The chain is sound, nothing overlaps, and free neighbours have merged.
        if block.next is not None:
            assert block.next.prev is block
            assert block.address + block.size == block.next.address
            both = block.free and block.next.free and block.mapped == block.next.mapped
            assert not both
    if not config.expandable_segments:
        placed = sorted((b.address, b.size) for b in blocks)
        assert all(a + size <= after for (a, size), (after, _) in pairwise(placed))
    mapped = sum(b.size for b in blocks if b.mapped)
    assert mapped == allocator.reserved_bytes
    assert sum(b.size for b in live) == allocator.allocated_bytes
    waiting = sum(b.requested for b in allocator.pending)
    assert sum(b.requested for b in live) + waiting == allocator.requested_bytes
    assert allocator.requested_bytes - waiting <= allocator.allocated_bytes
    assert allocator.allocated_bytes <= allocator.reserved_bytes <= allocator.peak_reserved_bytes
    assert capacity is None or allocator.peak_reserved_bytes <= capacity
    for pool in allocator.pools.values():
        assert pool.keys == sorted(pool.blocks)


@settings(max_examples=60, deadline=None)
@given(MOVES, CONFIGS)
def test_freeing_all_leaves_whole_segments_that_can_go(
    moves: list[Any], config: AllocatorConfig
) -> None:
    allocator = Allocator(config)
    for block in play(allocator, moves):
        allocator.free(block)
    allocator.done("late")
    assert allocator.allocated_bytes == allocator.requested_bytes == 0
    assert allocator.inactive_split_bytes == 0
    allocator.release_cached()
    assert allocator.reserved_bytes == 0
    assert allocator.segments == 0


@settings(max_examples=60, deadline=None)
@given(MOVES)
def test_an_expandable_segment_holds_its_pool_without_holes_between(moves: list[Any]) -> None:
    """Its reserved memory is at most the largest sum of live blocks plus what best fit leaves
    free within it; of one stream that only grows, less than a granule."""
    allocator = Allocator(AllocatorConfig(expandable_segments=True))
    for _, size, _, _ in moves:
        allocator.malloc(size)
    granules = sum(pool.granule for pool in allocator.pools.values())
    assert allocator.reserved_bytes - allocator.allocated_bytes < granules or not moves


@settings(max_examples=60, deadline=None)
@given(MOVES, CONFIGS)
@example(
    moves=[*[(False, 1, 0, "a")] * 3, (False, 1145857, 0, "a"), *[(False, 13533697, 0, "a")] * 2],
    config=AllocatorConfig(),
)
def test_the_same_again_needs_nothing_new(moves: list[Any], config: AllocatorConfig) -> None:
    """What was freed serves the same requests again: a small one may first take a large one's."""
    allocator = Allocator(config)
    for _ in range(2 + len(moves)):
        before = allocator.reserved_bytes
        for block in [allocator.malloc(size, stream) for _, size, _, stream in moves]:
            allocator.free(block)
    assert allocator.reserved_bytes == before


@pytest.mark.parametrize("expandable", [False, True])
def test_running_out_leaves_the_allocator_sound(expandable: bool) -> None:
    config = AllocatorConfig(expandable_segments=expandable)
    allocator = Allocator(config, capacity_bytes=100 * MIB)
    held = [allocator.malloc(18 * MIB) for _ in range(4)]
    with pytest.raises(OutOfMemory):
        allocator.malloc(60 * MIB)
    for block in held:
        allocator.free(block)
    allocator.malloc(80 * MIB)
