"""Row groups of Parquet files in bins: what Ray 2.60's ``OnlineBinPacker`` answered."""

from __future__ import annotations

import pytest

from raysim.rayapi.data.row_groups import RowGroup, packed


def of_sizes(*files: tuple[int, ...]) -> list[RowGroup]:
    """One row each."""
    return [
        RowGroup(number, at, 1, size)
        for number, sizes in enumerate(files)
        for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (((2,), (3,), (4,)), [["0.0", "1.0", "2.0"]]),  # small files share a bin
        (((6,), (5,), (4,)), [["0.0", "2.0"], ["1.0"]]),  # the first that has room; full is closed
        (((12,), (1,)), [["0.0"], ["1.0"]]),  # larger than a bin
        (((6, 6, 6, 3), (4,)), [["0.0", "1.0"], ["0.2", "0.3"], ["0.1"]]),  # a large file alone
        (((6,), (7,), (8,), (9,)), [["1.0"], ["2.0"], ["0.0"], ["3.0"]]),  # two are open
    ],
)
def test_bins_are_rays(files: tuple[tuple[int, ...], ...], expected: list[list[str]]) -> None:
    found = packed(of_sizes(*files), bin_bytes=10, open_bins=2)
    assert [[f"{g.file}.{g.begin}" for g in b] for b in found] == expected
