"""Where objects lie in the store's memory, and whose pages they are on."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from raysim.raycore.plasma.arena import SMALLEST_BYTES as PAGE
from raysim.raycore.plasma.arena import Arena


def test_the_smallest_chunk_that_is_large_enough_is_taken() -> None:
    arena = Arena(100 * PAGE)
    a, _, c, _ = (arena.place(size * PAGE) for size in (5, 3, 2, 1))
    arena.free(a, 5 * PAGE)
    arena.free(c, 2 * PAGE)
    assert arena.place(2 * PAGE) == c
    assert arena.place(4 * PAGE) == a
    assert arena.place(2 * PAGE) == 11 * PAGE  # one page is left below, and the end is above it


def test_what_is_free_below_the_end_is_the_end() -> None:
    arena = Arena(100 * PAGE)
    a, b, c = (arena.place(2 * PAGE) for _ in range(3))
    for start in (a, c, b):
        arena.free(start, 2 * PAGE)
    assert (arena.top, arena.place(7 * PAGE)) == (0, 0)


def test_a_page_is_provided_once_and_mapped_once_by_each_process() -> None:
    arena = Arena(100 * PAGE)
    start = arena.place(4 * PAGE)
    assert arena.write("one", start, 4 * PAGE) == (4 * PAGE, 0)
    assert arena.write("one", start, 4 * PAGE) == (0, 0)
    assert arena.write("two", start, 3 * PAGE) == (0, 3 * PAGE)
    assert arena.write("two", start, 6 * PAGE) == (2 * PAGE, PAGE)
    arena.forget("two")
    assert arena.write("two", start, 4 * PAGE) == (0, 4 * PAGE)


def test_small_objects_are_not_placed() -> None:
    arena = Arena(100 * PAGE)
    assert arena.place(PAGE - 1) == -1
    assert arena.write("one", -1, PAGE - 1) == (0, 0)
    arena.free(-1, PAGE - 1)
    assert arena.top == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_objects_never_overlap_and_all_that_is_given_back_is_free(
    steps: list[tuple[bool, int]],
) -> None:
    arena, there = Arena(10**9), list[tuple[int, int]]()
    for take, number in steps:
        if take or not there:
            size = number * PAGE
            there.append((arena.place(size), size))
        else:
            arena.free(*there.pop(number % len(there)))
        ends = sorted((start, start + size) for start, size in there)
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert arena.top == max((end for _, end in ends), default=0)
    for start, size in there:
        arena.free(start, size)
    assert arena.top == 0
