"""nccl-tests' definitions, and which groups and sizes are measured."""

from __future__ import annotations

import pytest

from raysim.measure.collectives import OPS, bus_factor, cases, members


@pytest.mark.parametrize(
    ("op", "factor"),
    [
        ("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8), ("broadcast", 1.0), ("send_recv", 1.0),
    ],
)  # fmt: skip
def test_bus_bandwidth_is_nccl_tests(op: str, factor: float) -> None:
    assert bus_factor(op, 8) == factor


def test_groups_split_the_world() -> None:
    assert members(8, 8, "one") == [[0, 1, 2, 3, 4, 5, 6, 7]]
    assert members(8, 4, "contiguous") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert members(8, 4, "strided") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for ranks in (2, 4):
        for groups in ("contiguous", "strided"):
            found = members(8, ranks, groups)
            assert sorted(rank for group in found for rank in group) == list(range(8))


def test_cases_are_every_operation_size_and_shape() -> None:
    found = list(cases(6, (1024, 4096)))
    shapes = [("one", 6), ("contiguous", 3), ("strided", 3), ("contiguous", 2), ("strided", 2)]
    assert list(dict.fromkeys((case.groups, case.ranks) for case in found)) == shapes
    assert len(found) == len(set(found)) == len(shapes) * (1 + 2 * len(OPS))
    assert [case.op for case in cases(3, (1024,))] == ["barrier", *OPS]
