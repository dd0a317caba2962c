"""How long LLM replicas take to start, against Anyscale's on H100.

Rows of Llama 70B fixed ``raylibs.llm.config.ColdStart``; others have more layers or fewer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.raylibs.llm.config import SHARDED_BYTES_PER_S, ColdStart
from raysim.serving.decoder import read_decoder
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED

_LLAMA: dict[str, Any] = {"model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256}
MODELS: dict[str, dict[str, Any]] = {
    "llama-3-8b": _LLAMA | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "llama-3-70b": _LLAMA | {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "moe_intermediate_size": 1536,
        "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4,
        "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    },
}  # fmt: skip
"""Widths of their ``config.json``."""


def cold_start_points(validation: Path) -> Iterator[Point]:
    """From placed bundles to the first request, in seconds."""
    text = (validation / PUBLISHED / "serving.json").read_text(encoding="utf-8")
    for row in json.loads(text)["cold_starts"]:
        left_out = row["why"] if row["use"] == "left_out" else ""
        cold = ColdStart()
        if row["sharded"]:
            cold = replace(cold, load_bytes_per_s=SHARDED_BYTES_PER_S)
        yield Point(
            family="serving/cold_start", name=row["id"], unit="s", measured=row["seconds"],
            role="validation" if left_out else row["use"], left_out=left_out,
            predicted=None if left_out else cold.seconds(read_decoder(MODELS[row["model"]])),
        )  # fmt: skip
