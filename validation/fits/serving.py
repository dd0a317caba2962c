"""Fit of the constants of LLM engines and their ingress on the calibration rows; prints them.

    python validation/fits/serving.py

One set for the software of 2025, one for 2026's; each constant on the value that depends on it
most (``why`` of the rows in ``data/published/serving.json``). Logarithms of predicted over
measured are made small by Gauss-Newton steps with differences of 5 %.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from raysim.serving.fleet import SERVE_2025, IngressSpec
from raysim.serving.timing import VLLM_2025, Constants
from raysim.validate.serving import means_of, play

DATA = Path(__file__).parents[1] / "data/published/serving.json"
STARTS = {"2025": (VLLM_2025, SERVE_2025), "2026": (Constants(), IngressSpec())}
ENGINE = ("iteration_s", "sequence_s", "mxfp4_share")
FITTED = {
    "2025": {
        "iteration_s": ("open.i1.o250.2xtp4.conc32.rr1", "tpot_s"),
        "request_s": ("open.i1.o250.2xtp4.conc32.rr1", "ttft_s"),
        "sequence_s": ("mixed.i1.o250.1xtp2.conc32", "tpot_s"),
        "mxfp4_share": ("prefill-only.i5000.o250.1xtp2.conc32", "requests_per_s"),
        "tokenize_token_s": ("open.i5000.o1.4xtp2.conc32.rr1", "ttft_s"),
        "token_s": ("open.i1.o1000.2xtp4.conc256.rr8", "requests_per_s"),
        "parse_token_s": ("open.i5000.o250.2xtp4.conc512.rr16", "tpot_s"),
    },
    "2026": {
        "iteration_s": ("vllm.20b.c32", "tpot_s"),
        "mxfp4_share": ("vllm.20b.c32", "ttft_s"),
        "sequence_s": ("vllm.20b.c64", "tpot_s"),
        "token_s": ("serve.20b.single_ingress.r8", "requests_per_s"),
    },
}
STEPS = 4
LEAST = 1e-7
"""Of a constant, in its unit."""


def residuals(rows: dict[str, Any], versions: str, values: dict[str, float]) -> np.ndarray:
    """Logarithm of predicted over measured, of each fitted constant's own value."""
    engine, ingress = STARTS[versions]
    engine = replace(engine, **{k: v for k, v in values.items() if k in ENGINE})
    ingress = replace(ingress, **{k: v for k, v in values.items() if k not in ENGINE})
    targets = FITTED[versions].values()
    means = {name: means_of(play(rows[name], engine, ingress)) for name, _ in targets}
    return np.log([getattr(means[name], what) / rows[name][what] for name, what in targets])


def main() -> None:
    """Fit both sets; print constants and what is left of the differences."""
    rows = {r["id"]: r for r in json.loads(DATA.read_text(encoding="utf-8"))["rows"]}
    for versions, targets in FITTED.items():
        engine, ingress = STARTS[versions]
        values = {k: getattr(engine if k in ENGINE else ingress, k) for k in targets}
        for _ in range(STEPS):
            now = residuals(rows, versions, values)
            slopes = np.array(
                [
                    (residuals(rows, versions, values | {k: v * 1.05}) - now) / np.log(1.05)
                    for k, v in values.items()
                ]
            ).T
            step = np.clip(np.linalg.lstsq(slopes, -now, rcond=0.05)[0], -0.7, 0.7)
            values = {
                k: max(LEAST, v * float(np.exp(d)))
                for (k, v), d in zip(values.items(), step, strict=True)
            }
        left = residuals(rows, versions, values)
        for (k, v), rest in zip(values.items(), left, strict=True):
            print(f"{versions} {k:17s} {v:.3g}  left {rest:+.1%}")


if __name__ == "__main__":
    main()
