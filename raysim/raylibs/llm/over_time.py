"""A fleet over time: what clients saw, and what each engine did.

Real counterpart: vLLM's metrics (``vllm:num_requests_running``, ``vllm:kv_cache_usage_perc``,
``vllm:inter_token_latency_seconds``...) as Ray Serve LLM's Grafana page shows them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isnan

import numpy as np

from raysim.raylibs.charts import (
    Chart,
    Line,
    against,
    edges,
    middles,
    percentiles,
    rates,
    under_way,
)
from raysim.raylibs.llm.server import Replicas
from raysim.serving.engine import LLMEngine, Served
from raysim.serving.loads import Load
from raysim.units import NS_PER_S

MOST_ENGINES = 16
"""Lines of a chart."""
_ENGINES = "Of each engine, as vLLM's own metrics have it."


def little(served: Sequence[Served], took_s: float, load: Load) -> str:
    """Requests per second times seconds of each is what is under way (Little's law)."""
    mean_s = sum(s.finished_ns - s.sent_ns for s in served) / len(served) / NS_PER_S
    per_s = len(served) / took_s
    said = (
        f"Little's law: {per_s:,.3g} requests/s x {mean_s:,.3g} s each = {per_s * mean_s:,.3g} "
        "under way in the mean"
    )
    if load.concurrency is not None and load.rate_per_s is None:
        return f"{said}; the clients are {load.concurrency:,}, and send as soon as they may."
    return f"{said}."


def charts_of(
    replicas: Replicas, served: Sequence[Served], ready_ns: int, identity: str
) -> tuple[Chart, ...]:
    """All of it."""
    sent = np.array([s.sent_ns for s in served]) / NS_PER_S
    ended = np.array([s.finished_ns for s in served]) / NS_PER_S
    windows = edges(ready_ns / NS_PER_S, float(ended.max()))
    ttft = percentiles(sent, [s.ttft_s for s in served], windows)
    tpot = percentiles(sent, [s.tpot_s for s in served], windows)
    came = rates("sent", sent, windows)
    tokens = [s.request.output_tokens for s in served]
    prompts = [s.request.prompt_tokens for s in served]
    return (
        Chart(
            key="ttft", title="Time to the first token (TTFT)", unit="seconds", lines=ttft,
            about="Of the requests sent in each window.",
        ),
        Chart(
            key="tpot", title="Time per output token after it (TPOT)", unit="seconds", lines=tpot,
            about="A request's mean; the engines' own pace is the inter-token latency below.",
        ),
        Chart(
            key="ttft-load", title="TTFT against load", unit="seconds",
            x=("requests sent", "per_s"), lines=against(came.points, ttft),
            about="A point is a window.",
        ),
        Chart(
            key="requests", title="Requests", unit="per_s",
            lines=(came, rates("answered", ended, windows)),
        ),
        Chart(
            key="under-way", title="Requests under way", about=identity,
            lines=(under_way("under way", sent, ended, windows),),
        ),
        Chart(
            key="tokens", title="Tokens", unit="per_s",
            about="Counted when their request ends.",
            lines=(
                rates("output tokens", ended, windows, weights=tokens),
                rates("prompt tokens", ended, windows, weights=prompts),
            ),
        ),
        *_engines(replicas, windows),
    )  # fmt: skip


def _engines(replicas: Replicas, windows: np.ndarray) -> list[Chart]:
    fleet = replicas.fleet
    named = [
        *((f"engine {i}", e) for i, e in enumerate(fleet.engines)),
        *((f"prefill {i}", e) for i, e in enumerate(fleet.prefill)),
    ]
    more = max(0, len(named) - MOST_ENGINES)

    def lines(of: Callable[[LLMEngine, np.ndarray], np.ndarray]) -> tuple[Line, ...]:
        found = [(name, of(engine, windows)) for name, engine in named if engine.samples.rows]
        mean = _mean([values for _, values in found])
        shown = [("mean of all engines", mean), *found[:MOST_ENGINES]]
        return tuple(_line(name, windows, values) for name, values in shown)

    return [
        Chart(key="running", title="Running requests", about=_ENGINES, summed=True, left_out=more,
              lines=lines(partial(_gauge, 0))),
        Chart(key="waiting", title="Waiting requests", about=_ENGINES, summed=True, left_out=more,
              lines=lines(partial(_gauge, 1))),
        Chart(key="kv-cache", title="Cache of keys and values in use", unit="share", limit=1.0,
              about=_ENGINES, summed=True, left_out=more, lines=lines(partial(_gauge, 2))),
        Chart(key="engine-tokens", title="Output tokens of each engine", unit="per_s", summed=True,
              left_out=more, lines=lines(partial(_slope, 3, None))),
        Chart(key="itl", title="Inter-token latency (ITL)", unit="seconds", summed=True,
              about="Busy seconds over iterations: one token of each running request.",
              left_out=more, lines=lines(partial(_slope, 5, 4))),
    ]  # fmt: skip


def _mean(rows: list[np.ndarray]) -> np.ndarray:
    """Of those that have a value; nan where none has."""
    there = [~np.isnan(row) for row in rows]
    count = np.sum(there, axis=0)
    total = np.sum([np.where(t, row, 0.0) for t, row in zip(there, rows, strict=True)], axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _line(name: str, windows: np.ndarray, values: np.ndarray) -> Line:
    pairs = zip(middles(windows), values.tolist(), strict=True)
    return Line(name=name, points=tuple((t, v) for t, v in pairs if not isnan(v)))


def _gauge(k: int, engine: LLMEngine, windows: np.ndarray) -> np.ndarray:
    """As last seen at the middle of each window."""
    rows = engine.samples.rows
    at = np.searchsorted([t_ns / NS_PER_S for t_ns, _ in rows], middles(windows), side="right")
    return np.array([rows[i - 1][1][k] if i else 0.0 for i in at])


def _slope(k: int, over: int | None, engine: LLMEngine, windows: np.ndarray) -> np.ndarray:
    """Change of one counter over that of another, or over time, in each window."""
    rows = engine.samples.rows
    seen_s = [t_ns / NS_PER_S for t_ns, _ in rows]

    def grown(column: int) -> np.ndarray:
        return np.diff(np.interp(windows, seen_s, [row[column] for _, row in rows]))

    base = np.diff(windows) if over is None else grown(over)
    return np.where(base > 0, grown(k) / np.where(base > 0, base, 1.0), np.nan)
