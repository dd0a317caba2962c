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
from raysim.validate.published import row_points


def ray_train_points(validation: Path) -> Iterator[Point]:
    """Every row of the data, those left out with the reason that stands there."""
    return row_points(validation, "ray_train.json", play)


def play(row: Mapping[str, Any]) -> float:
    """Seconds of ``fit()``; or after its start (``after_start``), or of its steps (``steps_s``)."""
    summary = run(from_mapping(row["scenario"]), record=False).summary
    metrics: Mapping[str, float] = summary["libraries"][0]["metrics"]
    if row["metric"] == "after_start":
        return metrics["seconds"] - metrics["start_s"]
    return metrics[row["metric"]]
