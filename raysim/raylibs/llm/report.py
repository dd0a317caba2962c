"""What requests of a language model came to: rates, times to tokens, as any report has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from raysim.raylibs.report import Input, Table, Unit
from raysim.serving.engine import Request

_TIMES = {"ttft": "to the first token", "tpot": "per token after it"}
PERCENTS = (50, 90, 95, 99)
"""Percentiles that are metrics: targets may limit them."""
Times = Mapping[str, np.ndarray]
"""Seconds of each request, by name."""

ITERATIONS = Input(
    name="iterations of engines", value="timing.py", basis="measured",
    source="H100, nine rows of validation/data/published/serving.json",
)  # fmt: skip


class Answered(Protocol):
    """What this module needs of a request that has its last token."""

    @property
    def request(self) -> Request:
        """What was asked."""

    @property
    def ttft_s(self) -> float:
        """Seconds to its first token."""

    @property
    def tpot_s(self) -> float:
        """Seconds of each token after it, in the mean."""


def times_of(answered: Sequence[Answered]) -> Times:
    """Of every request."""
    return {name: np.array([getattr(a, f"{name}_s") for a in answered]) for name in _TIMES}


def metrics_of(
    answered: Sequence[Answered], times: Times, took_s: float, gpus: int
) -> dict[str, float]:
    """Rates over ``took_s``, means and percentiles of times."""
    tokens = sum(a.request.output_tokens for a in answered)
    rates = {
        "requests_per_s": len(answered) / took_s,
        "output_tokens_per_s": tokens / took_s,
        "tokens_per_gpu_s": tokens / took_s / gpus,
    }
    for name, seconds in times.items():
        rates[f"{name}_mean"] = float(seconds.mean())
        shares = {f"{name}_p{percent}": percent / 100 for percent in PERCENTS}
        rates |= {key: float(np.quantile(seconds, share)) for key, share in shares.items()}
    return rates


def tokens_in_words(metrics: Mapping[str, float]) -> str:
    """Tokens per second, and how long one waits for them."""
    return (
        f"{metrics['output_tokens_per_s']:,.0f} tokens/s; first token after "
        f"{metrics['ttft_mean']:,.3g} s, then {metrics['tpot_mean'] * 1e3:,.3g} ms each."
    )


def latencies(times: Times, title: str = "latency") -> Table:
    """Means and percentiles."""
    rows: tuple[tuple[str | float, ...], ...] = tuple(
        (_TIMES[name], float(v.mean()), *(float(np.quantile(v, q)) for q in (0.5, 0.9, 0.99)))
        for name, v in times.items()
    )
    columns: tuple[tuple[str, Unit], ...] = (
        ("time", "text"), ("mean", "seconds"), ("p50", "seconds"), ("p90", "seconds"),
        ("p99", "seconds"),
    )  # fmt: skip
    return Table(title=title, columns=columns, rows=rows)
