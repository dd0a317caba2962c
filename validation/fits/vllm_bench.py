"""Fit of what gpt-oss's kernels reach on A100, on the calibration rows of ``vllm_bench.json``.

    python validation/fits/vllm_bench.py

Each constant is bisected until the logarithms of predicted over measured requests/s of its rows
add up to nothing, in turn.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from raysim.serving import timing
from raysim.validate.serving import means_of
from raysim.validate.vllm_bench import play

DATA = Path(__file__).parents[1] / "data/published/vllm_bench.json"
FITTED = {
    "MARLIN_SHARE": ("gpt-oss-20b.a100.baseline.i2000", "gpt-oss-120b.a100.baseline.i2000"),
    "TRITON_SHARE": ("gpt-oss-20b.a100.baseline.i32000",),
}
TURNS = 3
HALVINGS = 16


def main() -> None:
    """Fit both; print them and what is left of the differences."""
    found = json.loads(DATA.read_text(encoding="utf-8"))
    rows = {row["id"]: row for row in found["rows"]}

    def left(name: str) -> float:
        row = rows[name]
        played = means_of(play(found["configs"], row))
        return float(np.log(played.requests_per_s / row["requests_per_s"]))

    for constant, names in list(FITTED.items()) * TURNS:
        low, high = 0.02, 1.0
        for _ in range(HALVINGS):
            middle = (low * high) ** 0.5
            setattr(timing, constant, middle)
            low, high = (low, middle) if sum(map(left, names)) > 0 else (middle, high)
        print(constant, f"{middle:.3f}", [f"{left(name):+.1%}" for name in names])


if __name__ == "__main__":
    main()
