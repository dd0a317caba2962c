"""PyTorch's caching allocator: sizes of blocks and segments, reuse, release, fragmentation.

Facts of torch's own tests (``test/test_cuda.py``) and of ``CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

import pytest

from raysim.training.allocator.caching import Allocator, OutOfMemory
from raysim.training.allocator.config import AllocatorConfig, parse_alloc_conf
from raysim.units import MIB

EXPANDABLE = AllocatorConfig(expandable_segments=True)


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (21 * MIB + 1, 22 * MIB, 22 * MIB),  # less than 1 MiB would be left: not split
        (100 * MIB, 100 * MIB, 100 * MIB),
    ],
)
def test_blocks_and_segments(size: int, block: int, segment: int) -> None:
    allocator = Allocator()
    assert allocator.malloc(size).requested == size
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (block, segment)
    assert allocator.requested_bytes == size


def power2_div(size: int, divisions: int) -> int:
    """The reference of torch's ``test_allocator_settings``."""
    power = 1
    while power < size:
        power *= 2
    step, found = power // 2 // divisions, power // 2
    while found < size:
        found += step
    return power if power == size else found


@pytest.mark.parametrize("mib", [84, 252, 8, 63])
def test_rounding_to_divisions_of_powers_of_two(mib: int) -> None:
    size = mib * MIB
    for text, divisions in [
        ("4", 4),
        ("[64:8,128:2,256:4,512:2,1024:4,>:1]", {84: 8, 252: 2, 8: 8, 63: 8}[mib]),
    ]:
        config = parse_alloc_conf(f"roundup_power2_divisions:{text}")
        assert config.round_bytes(size) == power2_div(size, divisions)
    assert parse_alloc_conf("").round_bytes(size) == size


def test_small_and_large_requests_do_not_share_segments() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(20 * MIB))
    allocator.malloc(MIB)
    assert allocator.reserved_bytes == 22 * MIB


def test_streams_do_not_share_blocks() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(64 * MIB, "compute"))
    allocator.malloc(64 * MIB, "gather")
    assert allocator.reserved_bytes == 128 * MIB


def test_the_smallest_block_that_fits_is_taken_and_split() -> None:
    allocator = Allocator()
    large, small = allocator.malloc(100 * MIB), allocator.malloc(40 * MIB)
    allocator.free(large)
    allocator.free(small)
    block = allocator.malloc(30 * MIB)
    assert block is not None
    assert allocator.inactive_split_bytes == 10 * MIB
    allocator.free(block)
    assert allocator.inactive_split_bytes == 0


def test_freed_neighbours_merge() -> None:
    allocator = Allocator()
    whole = allocator.malloc(60 * MIB)
    allocator.free(whole)
    parts = [allocator.malloc(20 * MIB) for _ in range(3)]
    assert allocator.driver_calls == 1
    for at in (0, 2, 1):
        allocator.free(parts[at])
    allocator.malloc(60 * MIB)
    assert allocator.driver_calls == 1


def test_a_recorded_stream_delays_reuse() -> None:
    allocator = Allocator()
    allocator.free(allocator.malloc(64 * MIB, "gather"), {"compute"})
    assert allocator.allocated_bytes == 0
    allocator.malloc(64 * MIB, "gather")
    assert allocator.reserved_bytes == 128 * MIB
    allocator.done("compute")
    allocator.malloc(64 * MIB, "gather")
    assert allocator.reserved_bytes == 128 * MIB


def test_cached_segments_are_released_before_memory_runs_out() -> None:
    """``test_out_of_memory_retry``: the second half fits once the first is freed."""
    allocator = Allocator(capacity_bytes=100 * MIB)
    first = allocator.malloc(50 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(60 * MIB)
    assert (caught.value.asked_bytes, caught.value.free_bytes) == (60 * MIB, 50 * MIB)
    retried = allocator.retries
    allocator.free(first)
    allocator.malloc(60 * MIB)
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.retries == retried + 1


def test_split_segments_cannot_be_released() -> None:
    """Fragmentation: half is free, in pieces, and a request for half runs out of memory."""
    allocator = Allocator(capacity_bytes=80 * MIB)
    whole = allocator.malloc(80 * MIB)
    allocator.free(whole)
    parts = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    assert allocator.inactive_split_bytes == 40 * MIB
    with pytest.raises(OutOfMemory):
        allocator.malloc(40 * MIB)


def test_expandable_segments_give_their_holes_back() -> None:
    """The same pieces: 20 MiB granules that are whole and free are unmapped and mapped again."""
    allocator = Allocator(EXPANDABLE, capacity_bytes=80 * MIB)
    parts = [allocator.malloc(20 * MIB) for _ in range(4)]
    allocator.free(parts[0])
    allocator.free(parts[2])
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == allocator.allocated_bytes == 80 * MIB
    assert allocator.retries == 1


def test_expandable_segments_grow_by_granules() -> None:
    allocator = Allocator(EXPANDABLE)
    allocator.malloc(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.malloc(21 * MIB)
    assert allocator.reserved_bytes == 42 * MIB
    allocator.malloc(19 * MIB)
    assert allocator.reserved_bytes == 42 * MIB
    assert allocator.inactive_split_bytes == 0


def test_blocks_beyond_the_split_size_stay_whole() -> None:
    config = parse_alloc_conf("max_split_size_mb:40")
    allocator = Allocator(config)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(20 * MIB)  # may not cut the large block
    assert allocator.reserved_bytes == 80 * MIB
    allocator.malloc(50 * MIB)  # within 20 MiB of it: takes it whole
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.allocated_bytes == 80 * MIB


def test_oversize_blocks_are_released_one_by_one() -> None:
    """``release_available_cached_blocks``: only as many as the request needs."""
    allocator = Allocator(parse_alloc_conf("max_split_size_mb:40"), capacity_bytes=200 * MIB)
    blocks = [allocator.malloc(size * MIB) for size in (50, 60, 80)]
    for block in blocks:
        allocator.free(block)
    allocator.malloc(120 * MIB)
    assert allocator.reserved_bytes == (50 + 120) * MIB
    assert allocator.retries == 0


def test_garbage_collection_needs_a_memory_fraction() -> None:
    """Above the threshold, old whole segments go first; without a fraction torch never does it."""
    text = "garbage_collection_threshold:0.5"
    reserved = {}
    for conf in (text, f"{text},per_process_memory_fraction:0.9"):
        allocator = Allocator(parse_alloc_conf(conf), capacity_bytes=1000 * MIB)
        allocator.free(allocator.malloc(600 * MIB))
        allocator.malloc(20 * MIB, "other")
        reserved[conf] = allocator.reserved_bytes
    assert list(reserved.values()) == [620 * MIB, 20 * MIB]


def test_a_memory_fraction_is_a_limit() -> None:
    allocator = Allocator(
        parse_alloc_conf("per_process_memory_fraction:0.5"), capacity_bytes=100 * MIB
    )
    allocator.malloc(48 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(10 * MIB)


def test_touching_is_allocating_and_freeing() -> None:
    """The short cut leaves what the long way leaves."""
    sizes = [600, 5 * MIB, 3 * MIB, 12 * MIB, 700]
    short, long = Allocator(), Allocator()
    for allocator in (short, long):
        for block in [allocator.malloc(size) for size in (2 * MIB, 30 * MIB, 900)]:
            allocator.free(block)
    for size in sizes:
        assert short.touch(size)
        long.free(long.malloc(size))
    assert short.peak_allocated_bytes == long.peak_allocated_bytes
    assert short.reserved_bytes == long.reserved_bytes
    assert [p.keys for p in short.pools.values()] == [p.keys for p in long.pools.values()]
    assert not short.touch(64 * MIB)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_split_size_mb:10", "max_split_size_mb must be at least large_segment_size_mb, 20"),
        ("max_split_size_mb:abc", "whole number"),
        ("large_segment_size_mb:10", "must be above 10"),
        ("expandable_segments:true", "True or False"),
        ("garbage_collection_threshold:1.0", "between 0 and 1"),
        ("roundup_power2_divisions:3", "power of two"),
        ("roundup_power2_divisions:[256:1,500:2]", "power of two"),
        ("expandible_segments:True", "did you mean expandable_segments"),
        ("max_split_size_mb", "expected key:value"),
        ("backend:cudaMallocAsync", "not emulated"),
        ("roundup_power2_divisions:[256:1", "not closed"),
    ],
)
def test_refused_settings(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        parse_alloc_conf(text)


def test_settings_as_users_write_them() -> None:
    said = parse_alloc_conf(" expandable_segments : True, max_split_size_mb:128,backend:native ,")
    assert said == AllocatorConfig(expandable_segments=True, max_split_size_mb=128)
    assert parse_alloc_conf("pinned_use_background_threads:True") == AllocatorConfig()
