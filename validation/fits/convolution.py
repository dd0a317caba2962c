"""Fits what cuDNN's convolutions keep of a plain product's rate: ``raysim/perf/convolution.py``.

    python validation/fits/convolution.py

Nelder-Mead on the mean absolute logarithm of predicted over measured time in ``convolution.csv`` of
one H100. Every third shape is held back, and all of a shape's measurements with it; depthwise ones,
of which one shape was measured, are not fitted here. Prints the constants and the errors.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from raysim.hardware import catalog
from raysim.models.shapes import Convolution
from raysim.models.table import Gemm, Operator
from raysim.perf import convolution
from raysim.perf.compute import ComputeModel

VALIDATION = Path(__file__).parents[1]
TABLE = VALIDATION / "data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26/convolution.csv"
NAMES = ("data 2", "data 4", "weight 2", "weight 4", "gather", "layout")
HELD_BACK = 3
SHAPE = ("batch", "channels_in", "channels_out", "side", "kernel", "stride", "groups", "dims")
Row = dict[str, str]


def operator(row: Row) -> tuple[Operator, int]:
    """A measured convolution, and its batch."""
    batch, given, made, side, kernel, stride, groups, dims = (int(row[name]) for name in SHAPE)
    padding = 0 if kernel == stride else kernel // 2
    positions = ((side + 2 * padding - kernel) // stride + 1) ** dims
    taps, output = kernel**dims, float(made * positions)
    moved = given * side**dims + output
    found = Operator(
        name="convolution", kind="conv", moved=moved, moved_backward=2.0 * moved, output=output,
        gemm=Gemm(rows=float(positions * groups), n=made // groups, k=given // groups * taps,
                  groups=groups),
        conv=Convolution(taps=taps, steps=stride**dims, channels_last=row["layout"] == "last"),
        kernels_backward=2,
    )  # fmt: skip
    return found, batch


def errors(measured: list[Row]) -> np.ndarray:
    """Logarithm of predicted over measured seconds, row by row, with the constants in place."""
    model = ComputeModel(catalog.gpu("H100-SXM-80GB"))
    left = []
    for row in measured:
        op, batch = operator(row)
        dtype = "bf16" if row["dtype"] == "bf16" else "fp32"
        seconds = model.operator_s(op, batch=batch, dtype=dtype, backward=row["way"] == "backward")
        left.append(np.log(seconds / float(row["value"])))
    return np.array(left)


def put(values: np.ndarray) -> None:
    """The constants in place of those that the module has."""
    data2, data4, weight2, weight4, gather, layout = map(float, values)
    convolution.DATA_SHARE.update({2: data2, 4: data4})
    convolution.WEIGHT_SHARE.update({2: weight2, 4: weight4})
    convolution.GATHERS_PER_CYCLE, convolution.LAYOUT_SHARE = gather, layout


def rows() -> tuple[list[Row], list[Row]]:
    """Those to fit on, and those held back."""
    with TABLE.open() as file:
        measured = [row for row in csv.DictReader(file) if row["groups"] == "1"]
    shapes = list(dict.fromkeys(tuple(row[name] for name in SHAPE) for row in measured))
    held = set(shapes[HELD_BACK - 1 :: HELD_BACK])
    parts: tuple[list[Row], list[Row]] = ([], [])
    for row in measured:
        parts[tuple(row[name] for name in SHAPE) in held].append(row)
    return parts


def fit(measured: list[Row], first: np.ndarray) -> np.ndarray:
    """The constants that leave least."""

    def left(logs: np.ndarray) -> float:
        put(np.exp(logs))
        return float(np.abs(errors(measured)).mean())

    found = minimize(left, np.log(first), method="Nelder-Mead", options={"maxiter": 600})
    return np.exp(found.x)  # type: ignore[no-any-return]


if __name__ == "__main__":
    fitted, held = rows()
    values = fit(fitted, np.array([0.84, 1.0, 0.55, 0.45, 19.6, 0.6]))
    put(values)
    for name, value in zip(NAMES, values, strict=True):
        print(f"{name}: {value:.3f}")
    for name, part in (("fitted", fitted), ("held back", held)):
        sizes = 100 * np.abs(errors(part))
        print(
            f"{name}: {len(part)} rows, mean {sizes.mean():.1f} %, median {np.median(sizes):.1f} %"
        )
