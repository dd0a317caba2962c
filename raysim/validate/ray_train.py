"""Runs of Ray Train whose times were published, each a scenario with a ``trainer`` job.

Two families. ``given``: what a step takes is a number, from a row marked calibration or from the
same training without Ray; what is predicted is what Ray Train adds, and other sizes.
``end_to_end``: nothing is given but the user's own files; steps are the training tower's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raysim.run import run
from raysim.scenario.load import from_mapping
from raysim.validate.points import Point
from raysim.validate.published import rows


def ray_train_points(validation: Path) -> Iterator[Point]:
    """Every row of the data, those left out with the reason that stands there."""
    for row in rows(validation, "ray_train.json"):
        measured: dict[str, Any] = {"unit": row["unit"], "measured": row["value"]}
        if row["use"] == "left_out":
            measured |= {"role": "validation", "left_out": row["why"]}
        else:
            measured |= {"role": row["use"], "predicted": play(row)}
        yield Point(family=f"ray_train/{row['family']}", name=row["id"], **measured)


def play(row: Mapping[str, Any]) -> float:
    """Seconds of ``fit()``; or after its start (``after_start``), or of its steps (``steps_s``)."""
    summary = run(from_mapping(row["scenario"]), record=False).summary
    metrics: Mapping[str, float] = summary["libraries"][0]["metrics"]
    if row["metric"] == "after_start":
        return metrics["seconds"] - metrics["start_s"]
    return metrics[row["metric"]]
