"""Sweeps that were published: what a plan would choose, and what that layout was measured at.

A sweep is three or more layouts of one model on one cluster (sweeps of the model itself, its heads,
are left out). Runs of one layout are repetitions: their median counts. The plan chooses the layout
that is predicted fastest, which should reach 97 % of the best that was measured.

Twenty-one of 24 do. Of the others one is BigScience's A100 before the PCIe and NUMA fix, whose
machines were slower where they exchanged more; one is ZeRO-3 over many V100 nodes at micro-batches
of whole samples, predicted up to twice too fast (``validation/README.md``); in vTrain's of 256 GPUs
the two best are predicted within 3 %, less than errors tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from raysim.planner.choose import OWN_FRAC

COMPARED = Path(__file__).parents[2] / "validation" / "compared"
LEAST_LAYOUTS = 3
NOT_LAYOUTS = "heads of"
ENOUGH = 0.97
KNOWN_MISSES = ("before the PCIe and NUMA fix", "bigscience_v100_zero3", "h6144 L40 a48 s2048")


def sweeps() -> Iterator[tuple[str, pd.DataFrame]]:
    """Samples per second of every layout, predicted and measured."""
    rows = pd.concat([pd.read_csv(COMPARED / f"{name}.csv") for name in ("runs", "vtrain", "b200")])
    kept = rows.unit.isin(["s", "ms"]) & rows.job_sweeps.notna() & rows.predicted.notna()
    rows = rows[kept & rows.job_samples.notna()]
    rows = rows.assign(
        predicted=rows.job_samples / rows.predicted, measured=rows.job_samples / rows.measured,
        sweep=rows.job_sweeps.str.split(";"),
    ).explode("sweep")  # fmt: skip
    for name, found in rows.groupby("sweep"):
        alike = [found.predicted.round(6), "job_samples", "job_engine"]
        layouts = found.groupby(alike).agg(
            predicted=("predicted", "first"), measured=("measured", "median")
        )
        if len(layouts) >= LEAST_LAYOUTS and NOT_LAYOUTS not in str(name):
            yield str(name), layouts


@pytest.fixture(scope="module")
def reached() -> dict[str, float]:
    """Share of the best measured throughput, by sweep."""
    return {
        name: float(found.measured[found.predicted.idxmax()] / found.measured.max())
        for name, found in sweeps()
    }


def test_the_first_choice_is_near_the_best_measured(reached: dict[str, float]) -> None:
    assert len(reached) >= 24
    near = [share for share in reached.values() if share >= ENOUGH]
    assert len(near) / len(reached) >= 0.8
    assert min(reached.values()) > 0.85


def test_where_it_is_not_the_reason_is_known(reached: dict[str, float]) -> None:
    missed = [name for name, share in reached.items() if share < ENOUGH]
    assert [name for name in missed if not any(known in name for known in KNOWN_MISSES)] == []


def test_layouts_of_one_model_share_most_of_their_error() -> None:
    """``OWN_FRAC``: variance of errors within sweeps, over their variance in all."""
    errors = [np.log(found.predicted / found.measured) for _, found in sweeps()]
    within = sum(((e - e.mean()) ** 2).sum() for e in errors)
    free = sum(len(e) - 1 for e in errors)
    everything = np.concatenate(errors)
    assert within / free / everything.var() == pytest.approx(OWN_FRAC, abs=0.06)
