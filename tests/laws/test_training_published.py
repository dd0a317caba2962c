"""Throughput of published training runs: rows not used in fitting, compared point by point."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.validate.points import Point, errors
from raysim.validate.published import NODES, mpt_tokens_per_s, rows

VALIDATION = Path(__file__).parents[2] / "validation"


@pytest.mark.slow
@pytest.mark.parametrize("gpu", NODES)
def test_validation_rows_of_mpt_runs(gpu: str) -> None:
    """Every row is printed; the median and the 90th percentile are held."""
    of_it = [r for r in rows(VALIDATION, "llmfoundry_mpt.json") if r["gpu"] == gpu]
    points = []
    for row in of_it:
        measured = row["tokens_per_s_per_gpu"]
        said = mpt_tokens_per_s(row)
        print(f"{row['use']:11} {row['id']:60} {said / measured - 1:+.1%}")
        points.append(
            Point(family=gpu, name=row["id"], role=row["use"], measured=measured, predicted=said)
        )
    held = errors(points, gpu)
    assert held is not None
    assert held.rows == len(of_it) - 5
    # Found: medians 4.0 % (A100) and 6.2 % (H100); 90th percentiles 10.9 % and 14.4 %.
    assert held.median < 0.07
    assert held.p90 < 0.18
