"""Fits the shares of isolated rates that MPT's runs keep: ``SUSTAINED`` and ``TRITON_BACKWARD``.

    python validation/fits/sustained.py

Least squares of the logarithm of predicted over measured rate, Gauss-Newton, over the rows of
``llmfoundry_mpt.json`` marked ``calibration``: five per GPU. Prints the three constants and what is
left of each row; they are kept in ``raysim/perf/sustained.py`` and ``constants.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from raysim.perf import constants, sustained
from raysim.validate.published import mpt_tokens_per_s, rows

VALIDATION = Path(__file__).parents[1]
NAMES = ("ampere", "hopper", "triton backward")
STEP, ROUNDS = 1.03, 3


def residuals(values: np.ndarray, measured: list[dict[str, Any]]) -> np.ndarray:
    """Logarithm of predicted over measured rate, row by row."""
    sustained.SUSTAINED.update(zip(NAMES[:2], map(float, values), strict=False))
    constants.TRITON_BACKWARD = float(values[2])
    return np.log([mpt_tokens_per_s(row) / row["tokens_per_s_per_gpu"] for row in measured])


def fit(measured: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """The constants, from those in place, and what they leave."""
    values = np.array([*(sustained.SUSTAINED[n] for n in NAMES[:2]), constants.TRITON_BACKWARD])
    for _ in range(ROUNDS):
        left = residuals(values, measured)
        slopes = [
            (residuals(np.where(np.arange(3) == i, STEP * values, values), measured) - left)
            / np.log(STEP)
            for i in range(3)
        ]
        change, *_ = np.linalg.lstsq(np.transpose(slopes), -left, rcond=None)
        values = values * np.exp(change)
    return values, residuals(values, measured)


if __name__ == "__main__":
    chosen = [r for r in rows(VALIDATION, "llmfoundry_mpt.json") if r["use"] == "calibration"]
    found, left = fit(chosen)
    for name, value in zip(NAMES, found, strict=True):
        print(f"{name}: {value:.3f}")
    for row, error in zip(chosen, left, strict=True):
        print(f"{100 * error:+5.1f} %  {row['id']}")
    print(f"root mean square {100 * np.sqrt(np.mean(left**2)):.1f} %")
