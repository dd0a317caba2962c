"""The packaged table of compared runs, which the report of a job draws."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.perf import tables
from raysim.perf.uncertainty import _intervals, compared
from raysim.validate.intervals import write_tables
from raysim.validate.points import read_points

COMPARED = Path(__file__).parents[2] / "validation" / "compared"


def test_the_packaged_tables_are_those_of_the_compared_rows(tmp_path: Path) -> None:
    points = [p for path in sorted(COMPARED.glob("*.csv")) for p in read_points(path)]
    write_tables(points, tmp_path)
    written = sorted(tmp_path.glob("*.csv"))
    assert len(written) == 3
    for path in written:
        assert path.read_text() == (tables.FOLDER / path.name).read_text(), (
            "run `raysim validate --intervals`"
        )


def test_every_interval_has_the_rows_that_made_it() -> None:
    for kind, interval in _intervals().items():
        assert len(compared(kind)) == interval.rows, kind


def test_a_row_is_in_a_unit_that_compares() -> None:
    """llm-foundry's MPT-125M on 8 A100: 156,468 tokens/s/GPU of 2.74e-6 s at peak each."""
    rows = {row.name: row for row in compared(("time", "measured", "one", "kernels"))}
    row = rows["llmfoundry-mpt-125m-a100_80gb-8g-s1024-gbs1024-amp_bf16"]
    assert row.measured == pytest.approx(156_468 * 2.74022e-6, rel=1e-3)
    assert row.gpus == 8
    memory = compared(("memory", "any", "any", "any"))
    assert all(2**30 < row.measured < 300 * 2**30 for row in memory)
