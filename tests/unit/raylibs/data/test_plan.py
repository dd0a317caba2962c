"""Plans: how many read tasks, what is fused, how outputs are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.raylibs.data.blocks import Block, cut, evenly, sliced
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.plan import MapStage, plan_of, read_parallelism
from raysim.raylibs.data.specs import AllToAll, Dataset, Map, Source
from raysim.units import GIB, MIB

CONTEXT = DataContext()


@pytest.mark.parametrize(
    ("size_bytes", "files", "cpus", "expected"),
    [
        (100 * MIB, 0, 8, (100, 1)),  # a block holds at least 1 MiB
        (10 * GIB, 0, 8, (200, 1)),  # at least 200 blocks
        (100 * GIB, 0, 8, (800, 1)),  # of at most 128 MiB
        (10 * GIB, 0, 200, (400, 1)),  # two for each CPU
        (100 * GIB, 250, 8, (250, 4)),  # files of which each gives four blocks
    ],
)
def test_read_parallelism_is_rays(
    size_bytes: int, files: int, cpus: int, expected: tuple[int, int]
) -> None:
    source = Source(rows=1_000_000, row_bytes=size_bytes / 1e6, files=files)
    assert read_parallelism(source, CONTEXT, cpus) == expected


def names(*maps: Map | AllToAll, **source: int) -> list[str]:
    """Of the operators of a plan, its input apart."""
    dataset = Dataset(source=Source(rows=10_000, row_bytes=1e6, **source), operations=maps)
    return [
        n.stage.name if isinstance(n.stage, MapStage) else type(n.stage).__name__
        for n in plan_of(dataset, CONTEXT, 8)[1:]
    ]


def test_what_asks_for_the_same_is_one_operator() -> None:
    assert names(Map(name="A"), Map(name="B")) == ["Read->A->B"]
    assert names(Map(name="A"), Map(name="B", num_cpus=2)) == ["Read->A", "B"]
    assert names(Map(name="A", concurrency=4), Map(name="B")) == ["Read", "A", "B"]
    assert names(Map(name="A"), Map(name="B", actors=True, num_cpus=1)) == ["Read->A->B"]
    assert names(Map(name="A", actors=True, num_gpus=1), Map(name="B")) == ["Read", "A", "B"]
    sort = AllToAll(kind="sort")
    assert names(Map(name="A"), sort, Map(name="B")) == [
        "Read->A", "sort-sample", "sort-map", "ExchangeStage", "sort-reduce->B"
    ]  # fmt: skip


def test_a_read_whose_output_is_cut_is_fused_with_nothing() -> None:
    assert names(Map(name="A"), files=10) == ["Read", "A"]


@given(
    rows=st.integers(1, 10_000), size_bytes=st.integers(0, 10**10), target=st.integers(1, 10**9)
)  # fmt: skip
def test_cutting_conserves_rows_and_bytes_and_keeps_to_the_target(
    rows: int, size_bytes: int, target: int
) -> None:
    for parts in (cut(rows, size_bytes, target), evenly(rows, size_bytes, 7)):
        assert sum(p.rows for p in parts) == rows
        assert sum(p.size_bytes for p in parts) == size_bytes
        assert all(p.rows for p in parts)
    most = max(p.size_bytes for p in cut(rows, size_bytes, target))
    assert most <= 1.5 * target + 2 * (size_bytes / rows + 1)


@given(rows=st.integers(2, 1000), size_bytes=st.integers(0, 10**9), data=st.data())
def test_slices_are_the_block(rows: int, size_bytes: int, data: st.DataObject) -> None:
    first, other = sliced(Block(rows, size_bytes, start=5), data.draw(st.integers(1, rows - 1)))
    assert first.rows + other.rows == rows
    assert first.size_bytes + other.size_bytes == size_bytes
    assert other.start == 5 + first.rows
