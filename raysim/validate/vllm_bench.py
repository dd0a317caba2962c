"""``vllm serve`` on one node, row by row: prompts of one length all at once, or few clients.

GPUStack's performance lab: ten models on A100, H100 and H200, vLLM 0.10.2 to 0.13. Three rows fixed
what gpt-oss's kernels reach on A100 (``validation/fits/vllm_bench.py``); other constants are
``serving.json``'s of 2025's software, and where scheduling was asynchronous the host's time per
iteration is 2026's, in which it is the default. Requests are chats, whose templates servers of that
time rendered slowly; gpt-oss has none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.serving.decoder import read_decoder
from raysim.serving.engine import Served
from raysim.serving.fleet import RENDER_2025_S, SERVE_2025
from raysim.serving.loads import Lengths, Load
from raysim.serving.settings import EngineSettings
from raysim.serving.timing import ITERATION_S, VLLM_2025
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED
from raysim.validate.serving import points_of, served

MEMORY_SHARE = 0.90
"""vLLM's ``gpu_memory_utilization`` before 2026."""


def vllm_bench_points(validation: Path) -> Iterator[Point]:
    """Three values of every row, by model; rows left out with the reason that stands there."""
    found = json.loads((validation / PUBLISHED / "vllm_bench.json").read_text(encoding="utf-8"))
    for row in found["rows"]:
        yield from points_of(row, "vllm_bench", partial(play, found["configs"]))


def play(configs: Mapping[str, Any], row: Mapping[str, Any]) -> list[Served]:
    """What the clients of one row got."""
    rendered = 0.0 if configs[row["model"]]["model_type"] == "gpt_oss" else RENDER_2025_S
    asynchronous = replace(VLLM_2025, iteration_s=ITERATION_S)
    return served(
        read_decoder(configs[row["model"]]), catalog.node(row["node"]),
        EngineSettings(
            tensor_parallel_size=row["tensor_parallel"], gpu_memory_utilization=MEMORY_SHARE,
            **row["settings"],
        ),
        Load(
            prompt=Lengths(mean=row["prompt"]), output=Lengths(mean=row["output"]),
            requests=row["requests"], concurrency=row["concurrency"] or row["requests"],
        ),
        constants=asynchronous if row["asynchronous"] else VLLM_2025,
        ingress=replace(SERVE_2025, replicas=0, render_s=rendered),
    )  # fmt: skip
