"""Closed forms of model states: the ZeRO paper's table and DeepSpeed's estimators, row by row.

``validation/data/published/zero_memory.json``. These are formulas on both sides and must be equal
to the digit printed; they say nothing of how good the simulated memory is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.training.memory.estimators import (
    StateBytes,
    estimate_zero2_model_states_mem_needs,
    estimate_zero3_model_states_mem_needs,
    zero_paper_bytes,
)
from raysim.units import GIB
from raysim.validate.points import Point
from raysim.validate.published import rows

LEGACY = "ds-estimator-z2-none"
"""DeepSpeed's documentation still prints 4P + 16P/N where its code computes 2P + 18P/N."""


def model_state_points(validation: Path) -> Iterator[Point]:
    """GPU memory of every row, and host memory of the estimators'."""
    for row in rows(validation, "zero_memory.json"):
        if row["id"].startswith("zero-paper"):
            said = zero_paper_bytes(row["parameters"], row["gpus"], row["stage"])
            printed = round(said / 1e9, len(str(row["gpu_gb"]).partition(".")[2]))
            yield _point("zero_paper", row["id"], "GB", row["gpu_gb"], printed)
            continue
        if row["id"] == LEGACY:
            yield Point(
                family="model_states/estimators", name=row["id"], role="validation",
                left_out="the documentation prints an older formula than the code computes",
            )  # fmt: skip
            continue
        found = _estimate(row)
        for what, size in (("gpu", found.gpu_bytes), ("cpu", found.cpu_bytes)):
            if f"{what}_gib" in row:
                printed = float(f"{size / GIB:.2f}")
                name = f"{row['id']} {what}"
                yield _point("estimators", name, "GiB", row[f"{what}_gib"], printed)


def _point(family: str, name: str, unit: str, measured: float, predicted: float) -> Point:
    return Point(
        family=f"model_states/{family}", name=name, role="validation", unit=unit,
        measured=measured, predicted=predicted,
    )  # fmt: skip


def _estimate(row: dict[str, Any]) -> StateBytes:
    parameters, gpus = row["parameters"], row["gpus"]  # on one node
    if row["stage"] == 2:
        return estimate_zero2_model_states_mem_needs(
            parameters, gpus, 1, cpu_offload=row["offload_optimizer"]
        )
    return estimate_zero3_model_states_mem_needs(
        parameters, row["largest_layer_parameters"], gpus, 1,
        cpu_offload=row["offload_optimizer"], cpu_offload_params=row["offload_param"],
        zero_init=row["zero_init"],
    )  # fmt: skip
