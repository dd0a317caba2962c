"""Fit of fused attention's rows that were measured with ``raysim measure gpu``; prints them.

    python validation/fits/fused_here.py validation/data/nvidia-h100-80gb-hbm3-1gpu/2026-11-26 h100

cuDNN's and FlashAttention 2's kernels, forward and backward; head dimensions 64 and 128. The row
goes into ``raysim/perf/tables/attention.csv``; few shapes, so none is held out: what training
steps on the same GPU take, which no constant saw, tells how good it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernels import Floats, simplex

from raysim.measure.table import read_rows
from raysim.models.table import Attention
from raysim.perf import tables
from raysim.perf.attention import AttentionConstants, fused_seconds, grouped_bytes
from raysim.perf.constants import MEMORY_SHARE
from raysim.perf.tables import Curve

KERNELS = {"cudnn": "cudnn", "flash": "fa2"}
NAMES = ("fixed_s", "memory_efficiency", "quantisation", "row_elements", "flops_64", "flops_128",
         "backward_ratio", "diagonal")  # fmt: skip
UNIT = np.array([1e-6, 1, 1, 1, 1e12, 1e12, 1, 1])
START = np.array([8, 0.5, 0.4, 100, 400, 600, 0.8, 200])
LOW = np.array([1, 0.05, 0.001, 1, 20, 20, 0.3, 1])
HIGH = np.array([40, 20, 1, 800, 1500, 1500, 1.2, 600])


@dataclass(frozen=True)
class Row:
    """One measured core."""

    shape: Attention
    batch: int
    backward: bool
    seconds: float


def read(folder: Path, kernel: str) -> list[Row]:
    """Rows of ``attention.csv`` of one of torch's backends."""
    found = []
    for row in read_rows(folder / "attention.csv"):
        p = row.parameters
        if p["kernel"] == kernel:
            seq, width = int(p["seq"]), int(p["head_dim"])
            shape = Attention(
                q_len=seq, kv_len=seq, heads=int(p["heads"]), kv_heads=int(p["kv_heads"]),
                head_dim=width, v_head_dim=width, causal=p["causal"] == "True", window=None,
                implementation="sdpa",
            )  # fmt: skip
            backward = p["direction"] == "backward"
            found.append(Row(shape, int(p["batch"]), backward, row.value))
    return found


def constants(x: Floats, sms: int, memory: float) -> AttentionConstants:
    """From the vector that is fitted."""
    fixed, efficiency, quantisation, row, narrow, wide, ratio, diagonal = (
        float(v) for v in x * UNIT
    )
    return AttentionConstants(
        flops_per_s=Curve(sizes=(64.0, 128.0), values=(narrow, wide)), backward_ratio=ratio,
        fixed_s=fixed, quantisation=quantisation, sm_count=sms,
        io_bytes_per_s=memory * efficiency, row_elements=row, diagonal=diagonal,
    )  # fmt: skip


def errors(c: AttentionConstants, rows: Sequence[Row], streaming: float) -> Floats:
    """Log of predicted over measured; ``streaming``: bytes per second of plain kernels."""
    predicted = []
    for row in rows:
        heads = {"batch": row.batch, "heads": row.shape.heads, "kv_heads": row.shape.kv_heads}
        seconds = fused_seconds(c, row.shape, backward=row.backward, **heads)
        summed = grouped_bytes(row.shape, **heads) if row.backward else 0.0
        predicted.append(seconds + summed / streaming)
    return np.log(np.array(predicted) / np.array([r.seconds for r in rows]))


def main() -> None:
    """Fit both kernels and print constants and errors."""
    folder, system = Path(sys.argv[1]), sys.argv[2]
    gpu = tables.rows("gemm", system)[0]
    sms, memory = int(gpu["sm_count"]), float(gpu["memory_bytes_per_s"])
    streaming = memory * MEMORY_SHARE
    for measured, name in KERNELS.items():
        rows = read(folder, measured)

        def loss(x: Floats, rows: Sequence[Row] = rows) -> float:
            return float(np.mean(np.abs(errors(constants(x, sms, memory), rows, streaming))))

        best = simplex(loss, START, LOW, HIGH, steps=1500)
        print(name, {k: f"{v:.4g}" for k, v in zip(NAMES, best * UNIT, strict=True)})
        left = errors(constants(best, sms, memory), rows, streaming)
        print(f"  {len(rows)} rows, mean error {100 * np.mean(np.abs(np.expm1(left))):.1f} %")
        for row, error in zip(rows, left, strict=True):
            s = row.shape
            print(
                f"  b{row.batch} h{s.heads}/{s.kv_heads} s{s.q_len} d{s.head_dim} "
                f"causal={s.causal} backward={row.backward} {row.seconds * 1e6:9.1f} us "
                f"{np.expm1(error):+.1%}"
            )


if __name__ == "__main__":
    main()
