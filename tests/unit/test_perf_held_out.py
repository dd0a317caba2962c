"""Kernel tables against rows that no fit saw: a sample of them, in ``tests/data/kernels``."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, median

import pytest

from raysim.hardware import catalog
from raysim.models.table import Attention
from raysim.perf import tables
from raysim.perf.attention import fused_seconds
from raysim.perf.compute import ComputeModel

DATA = Path(__file__).parents[1] / "data" / "kernels"
GPUS = {
    "a100": "A100-SXM-80GB", "h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "b200": "B200",
    "gb200": "GB200", "l40s": "L40S",
}  # fmt: skip
PRODUCTS = [(row["system"], row["dtype"]) for s in GPUS for row in tables.rows("gemm", s)]


def rows(name: str, *key: str) -> list[list[float]]:
    lines = (DATA / f"{name}.csv").read_text(encoding="ascii").splitlines()
    cells = [line.split(",") for line in lines if not line.startswith("#")][1:]
    return [[float(c) for c in row[len(key) :]] for row in cells if row[: len(key)] == list(key)]


@pytest.mark.parametrize(("system", "dtype"), PRODUCTS)
def test_products_held_out_err_as_the_table_says(system: str, dtype: str) -> None:
    model = ComputeModel(catalog.gpu(GPUS[system]))
    sample = rows("gemm", system, dtype)
    assert len(sample) == 60
    errors = [
        abs(model.gemm_s(m, int(n), int(k), dtype) * 1e6 / us - 1) * 100  # type: ignore[arg-type]
        for m, n, k, us in sample
    ]
    said = next(r for r in tables.rows("gemm", system) if r["dtype"] == dtype)
    assert median(errors) <= float(said["error_median_percent"]) + 1.5
    if (system, dtype) != ("b200", "fp8"):  # 6 % of its rows are outliers: see the table's head
        assert fmean(errors) <= float(said["error_percent"]) + 1.5


@pytest.mark.parametrize("system", GPUS)
def test_attention_held_out_errs_as_the_table_says(system: str) -> None:
    constants = ComputeModel(catalog.gpu(GPUS[system])).constants.attention("best")
    errors = []
    for batch, length, heads, kv_heads, dim, window, us in rows("attention", system):
        core = Attention(
            q_len=int(length), kv_len=int(length), heads=int(heads), kv_heads=int(kv_heads),
            head_dim=int(dim), v_head_dim=int(dim), causal=True, window=int(window) or None,
            implementation="flash_attention_2",
        )  # fmt: skip
        seconds = fused_seconds(
            constants, core, batch=batch, heads=core.heads, kv_heads=core.kv_heads, backward=False
        )
        errors.append(abs(seconds * 1e6 / us - 1) * 100)
    said = tables.rows("attention", system)[0]
    assert len(errors) == 60
    assert fmean(errors) <= float(said["error_long_percent"]) + 2.5
