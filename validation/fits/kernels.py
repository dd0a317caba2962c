"""What the fits of kernel tables share: measured rows, splits, a simplex search.

Rows are AIConfigurator's systems data (Apache-2.0), one folder per system with Parquet files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raysim.perf import tables

Floats = NDArray[np.float64]
FOLDERS = {
    "a100": "a100_sxm", "h100": "h100_sxm", "h200": "h200_sxm", "b200": "b200_sxm",
    "gb200": "gb200", "l40s": "l40s",
}  # fmt: skip
"""Folder of each system."""


def read(root: Path, system: str, name: str) -> pd.DataFrame:
    """Rows of one table, with ``seconds`` in place of milliseconds."""
    table = pd.read_parquet(root / FOLDERS[system] / f"{name}.parquet")
    table["seconds"] = table["latency"] * 1e-3
    return table


def others(name: str) -> tuple[list[str], list[str]]:
    """Head lines and rows of a table that are of systems not among ``FOLDERS``."""
    heads = [
        f"# {key}: {text}" for key, text in tables.meta(name).items() if key in tables.systems(name)
    ]
    mine = [system for system in tables.systems(name) if system not in FOLDERS]
    return heads, [",".join(row.values()) for own in mine for row in tables.rows(name, own)]


def held_out(keys: list[tuple[int, ...]], seed: int) -> NDArray[np.bool_]:
    """Rows of a random quarter of the distinct ``keys``: no shape is on both sides."""
    distinct = sorted(set(keys))
    chosen = np.random.default_rng(seed).random(len(distinct)) < 0.25
    held = {key for key, out in zip(distinct, chosen, strict=True) if out}
    return np.array([key in held for key in keys])


def folds(keys: list[tuple[int, ...]], count: int, seed: int) -> NDArray[np.int64]:
    """A fold per row, the same for equal ``keys``."""
    distinct = {key: i for i, key in enumerate(sorted(set(keys)))}
    by_key = np.random.default_rng(seed).integers(0, count, len(distinct))
    return by_key[[distinct[key] for key in keys]]


def percent(predicted: Floats, measured: Floats) -> float:
    """Mean absolute error."""
    return float(np.abs(predicted / measured - 1).mean() * 100) if len(measured) else 0.0


def simplex(
    loss: Callable[[Floats], float], start: Floats, low: Floats, high: Floats, steps: int
) -> Floats:
    """Nelder and Mead's minimum of ``loss`` within bounds, in logarithms, restarted three times."""
    best = np.log(np.clip(start, np.maximum(low, 1e-4), high))

    def bounded(z: Floats) -> Floats:
        return np.clip(np.exp(z), low, high)

    for width in (0.3, 0.2, 0.1):
        offsets = width * np.eye(len(best)) * np.where(np.arange(len(best)) % 2, 1, -1)
        points = [best, *(best + row for row in offsets)]
        values = [loss(bounded(z)) for z in points]
        for _ in range(steps):
            order = np.argsort(values)
            points, values = [points[i] for i in order], [values[i] for i in order]
            centre = np.mean(points[:-1], axis=0)
            step = centre - points[-1]
            tried = [(centre + step, loss(bounded(centre + step)))]
            if tried[0][1] < values[0]:
                tried.append((centre + 2 * step, loss(bounded(centre + 2 * step))))
            elif tried[0][1] >= values[-2]:
                inward = centre + (0.5 if tried[0][1] < values[-1] else -0.5) * step
                tried.append((inward, loss(bounded(inward))))
            point, value = min(tried, key=lambda pair: pair[1])
            if value < values[-1]:
                points[-1], values[-1] = point, value
            else:
                points = [points[0], *(0.5 * (points[0] + z) for z in points[1:])]
                values = [values[0], *(loss(bounded(z)) for z in points[1:])]
        best = points[int(np.argmin(values))]
    return bounded(best)
