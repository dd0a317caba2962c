"""Fit of ``raysim/perf/tables/moe.csv``: grouped products of experts over plain ones; writes it.

    python validation/fits/moe.py ROOT

vLLM's unquantized fused experts, bf16, balanced, all experts on one GPU: two grouped products
around a gated unit, with the rows' permutation. Left out: experts without a gate (Nemotron's
widths), shards narrower than 256 or not of whole 64s, fewer than 512 tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from kernels import FOLDERS, Floats, held_out, percent, read

from raysim.hardware import catalog
from raysim.perf import tables
from raysim.perf.compute import ComputeModel

SEED = 11
GPUS = {
    "h100": "H100-SXM-80GB", "h200": "H200-SXM-141GB", "b200": "B200", "gb200": "GB200",
    "l40s": "L40S",
}  # fmt: skip
ROWS = (16, 64, 256, 1024, 4096)
UNGATED = (1856, 2688, 5120)


def experts(root: Path, system: str, distribution: str) -> tuple[Floats, ...]:
    """Seconds measured, of plain grouped products, of the traffic; rows per expert; held out."""
    model = ComputeModel(catalog.gpu(GPUS[system]))
    table = read(root, system, "moe")
    width = table["inter_size"] // table["moe_tp_size"]
    own = (table["moe_dtype"] == "bfloat16") & (table["distribution"] == distribution)
    own &= (table["moe_ep_size"] == 1) & (table["num_tokens"] >= 512) & (width >= 256)
    table = table[own & (width % 64 == 0) & ~table["inter_size"].isin(UNGATED)]
    names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")
    keys = [tuple(map(int, key)) for key in table[list(names)].to_numpy()]
    products, traffic, each = [], [], []
    for tokens, hidden, inter, topk, count, tp in keys:
        rows, wide = tokens * topk, inter // tp
        up = model.gemm_s(rows, 2 * wide, hidden, "bf16", count)
        products.append(up + model.gemm_s(rows, hidden, wide, "bf16", count))
        moved = 2.0 * (3 * rows * wide + rows * hidden + tokens * hidden)
        traffic.append(model.memory_s(moved, kernels=4))
        each.append(rows / count)
    columns = (table["seconds"], products, traffic, each)
    return (*(np.array(c, float) for c in columns), held_out(keys, SEED))


def shares(rows: Floats) -> Floats:
    """Of every row in every knot."""
    at, x = np.log2(ROWS), np.clip(np.log2(rows), np.log2(ROWS[0]), np.log2(ROWS[-1]))
    return np.maximum(0, 1 - np.abs(x[:, None] - at[None]) / (at[1] - at[0]))


def main() -> None:
    """Fit every system whose balanced rows were measured."""
    root, lines = Path(sys.argv[1]), []
    for system in FOLDERS:
        if system not in GPUS:
            continue
        seconds, products, traffic, rows, held = experts(root, system, "balanced")
        x, target = shares(rows), np.log(np.maximum(seconds - traffic, 0.2 * products) / products)
        train, weight = held == 0, np.ones(len(rows))
        for _ in range(8):
            a, w = x[train], weight[train]
            square = a.T @ (a * w[:, None]) + 0.5 * np.eye(len(ROWS))
            g = np.linalg.solve(square, a.T @ (w * target[train]))
            weight = 0.05 / np.maximum(np.abs(target - x @ g), 0.02)
        cells = np.round(100 * np.expm1(g)).astype(int)
        factor = np.exp(x @ np.log(1 + cells / 100))
        out = held == 1
        errors = [
            percent((f * products + traffic)[out], seconds[out]) for f in (1 + 0 * factor, factor)
        ]
        counts = f"{int(train.sum())},{int(out.sum())}"
        shown = ",".join(f"{e:.1f}" for e in errors)
        lines.append(f"{system},{','.join(map(str, cells))},{counts},{shown}")
        print(lines[-1], flush=True)
    write(lines)


SOURCE = (
    "AIConfigurator systems data (Apache-2.0), newest version; moe tables, bf16, vLLM's fused "
    "experts (Triton; FlashInfer on Blackwell), balanced"
)
METHOD = (
    "percent of time that a grouped product takes beyond raysim's plain one of as many tiles, by "
    "rows per expert; validation/fits/moe.py"
)
HELD = (
    "a random quarter of the shapes (numpy default_rng(11)); errors are mean absolute percent of "
    "the block on them, without and with the curve"
)


def write(lines: list[str]) -> None:
    """The table with its head."""
    columns = ["system", *(f"r{r}" for r in ROWS), "rows_fitted", "rows_held_out"]
    columns += ["error_plain_percent", "error_percent"]
    head = [f"# source: {SOURCE}", "# date: 2026-11", f"# method: {METHOD}"]
    head += [f"# held out: {HELD}", ",".join(columns)]
    path = Path(tables.__file__).parent / "tables" / "moe.csv"
    path.write_text("\n".join([*head, *lines, ""]), encoding="ascii")


if __name__ == "__main__":
    main()
