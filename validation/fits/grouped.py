"""Fit of ``raysim/perf/tables/grouped.csv``: Transformer Engine's grouped products; writes it.

    python validation/fits/grouped.py

Times measured hot on 8 B200 (``data/published/b200_grouped.json``) over raysim's plain products of
as many tiles at the share of isolated rates that such loops keep. Forward and input gradients get
a curve by rows per group; weight gradients, which add to fp32, are as fast as plain ones.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from raysim.hardware import catalog
from raysim.perf import tables
from raysim.perf.compute import ComputeModel
from raysim.perf.gemm import granule

SEED = 11
ROWS = (128, 256, 512, 1024, 2048)
DATA = Path(__file__).parents[1] / "data/published/b200_grouped.json"


def plain_s(model: ComputeModel, way: str, groups: int, rows: int, n: int, k: int) -> float:
    """Seconds of the same work as a plain product."""
    if way == "weight":
        product = model.gemm_s(float(n) * groups, k, rows, "bf16", groups, lead=granule(n, k))
        return product + 6.0 * n * k * groups / model.constants.memory_bytes_per_s
    n, k = (n, k) if way == "forward" else (k, n)
    return model.gemm_s(float(groups) * rows, n, k, "bf16", groups)


def main() -> None:
    """Fit the curve on three quarters of the shapes; print and write it with its errors."""
    model = ComputeModel(catalog.gpu("B200"), sustained_share=None, gpus=1)
    rows = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    shapes = sorted({tuple(r[1:5]) for r in rows})
    held = set(np.random.default_rng(SEED).choice(len(shapes), len(shapes) // 4, replace=False))
    unseen = {shape for i, shape in enumerate(shapes) if i in held}
    ratio = {(r[0], *r[1:5]): r[5] * 1e-6 / plain_s(model, *r[:5]) for r in rows}
    curved = {key: value for key, value in ratio.items() if key[0] != "weight"}
    fitted = [(key, value) for key, value in curved.items() if key[1:] not in unseen]
    x = shares(np.array([key[2] for key, _ in fitted], float))
    target = np.log([value for _, value in fitted])
    g = np.linalg.solve(x.T @ x + 0.1 * np.eye(len(ROWS)), x.T @ target)
    cells = np.round(100 * np.expm1(g)).astype(int)
    out = [(key, value) for key, value in curved.items() if key[1:] in unseen]
    said = np.exp(shares(np.array([key[2] for key, _ in out], float)) @ np.log(1 + cells / 100))
    weight = [value for key, value in ratio.items() if key[0] == "weight"]
    line = (
        f"b200,{','.join(map(str, cells))},{len(fitted)},{len(out)},"
        f"{error([v for _, v in out], 1.0):.1f},{error([v for _, v in out], said):.1f},"
        f"{error(weight, 1.0):.1f}"
    )
    print(line)
    columns = ["system", *(f"r{r}" for r in ROWS), "rows_fitted", "rows_held_out"]
    columns += ["error_plain_percent", "error_percent", "error_weight_percent"]
    head = [f"# source: {SOURCE}", "# date: 2026-11", f"# method: {METHOD}", f"# held out: {HELD}"]
    path = Path(tables.__file__).parent / "tables" / "grouped.csv"
    path.write_text("\n".join([*head, ",".join(columns), line, ""]), encoding="ascii")


def shares(rows: np.ndarray) -> np.ndarray:
    """Of every row in every knot."""
    at, x = np.log2(ROWS), np.clip(np.log2(rows), np.log2(ROWS[0]), np.log2(ROWS[-1]))
    return np.maximum(0, 1 - np.abs(x[:, None] - at[None]) / (at[1] - at[0]))


def error(measured: object, said: object) -> float:
    """Mean absolute percent."""
    return float(100 * np.mean(np.abs(np.asarray(said) / np.asarray(measured) - 1)))


SOURCE = (
    "Transformer Engine's grouped products on 8 B200 in long loops, SimuMax v1.2 (Apache-2.0), "
    "validation/data/published/b200_grouped.json"
)
METHOD = (
    "percent of time that a grouped product of forward or input gradients takes beyond raysim's "
    "plain one of as many tiles, by rows per group; validation/fits/grouped.py"
)
HELD = (
    "a quarter of the shapes (numpy default_rng(11)); errors are mean absolute percent on them, "
    "without and with the curve, and of all weight gradients without one"
)

if __name__ == "__main__":
    main()
