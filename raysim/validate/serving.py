"""LLM engines behind Ray Serve, row by row: requests per second, first tokens, tokens after it.

Rows marked calibration fixed ``serving.timing``'s and ``serving.fleet``'s constants
(``validation/fits/serving.py``): one set of vLLM and Ray Serve of 2025, one of 2026. Clients are
``vllm bench serve``'s. Token ids and tokenizers play no part: gpt-oss is its widths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from raysim.hardware import catalog
from raysim.hardware.specs import NodeSpec
from raysim.kernel.simulation import Simulation
from raysim.serving.build import engine_on
from raysim.serving.decoder import Decoder, read_decoder
from raysim.serving.engine import Served
from raysim.serving.fleet import SERVE_2025, Fleet, IngressSpec
from raysim.serving.loads import Clients, Lengths, Load
from raysim.serving.settings import EngineSettings
from raysim.serving.timing import VLLM_2025, VLLM_2026, Constants
from raysim.validate.cold_start import cold_start_points
from raysim.validate.points import Point
from raysim.validate.published import rows

NODE = "hgx-h100-8"
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "num_experts_per_tok": 4, "intermediate_size": 2880,
    "vocab_size": 201088, "sliding_window": 128, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
MODELS = {
    "gpt-oss-120b": GPT_OSS | {"num_hidden_layers": 36, "num_local_experts": 128},
    "gpt-oss-20b": GPT_OSS | {"num_hidden_layers": 24, "num_local_experts": 32},
}
"""Widths of ``openai/gpt-oss-*``'s ``config.json``."""
ENGINES = {"2025": VLLM_2025, "2026": VLLM_2026}
INGRESSES = {"2025": SERVE_2025, "2026": IngressSpec()}
LONGEST = "10h"


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a benchmark prints."""

    requests_per_s: float
    ttft_s: float
    tpot_s: float


def serving_points(validation: Path) -> Iterator[Point]:
    """Up to three values of every row; rows left out with the reason that stands there."""
    for row in rows(validation, "serving.json"):
        yield from points_of(row, "serving", play)
    yield from cold_start_points(validation)


def points_of(
    row: Mapping[str, Any], family: str, played: Callable[[Mapping[str, Any]], list[Served]]
) -> Iterator[Point]:
    """What one row says of a benchmark, beside what clients got where it is ``played``."""
    left_out = row["why"] if row["use"] == "left_out" else ""
    role = "calibration" if row["use"] == "calibration" else "validation"
    means = None if left_out else means_of(played(row))
    for name, unit in (("requests_per_s", "per_s"), ("ttft_s", "s"), ("tpot_s", "s")):
        if row[name] is not None:
            yield Point(
                family=f"{family}/{name.removesuffix('_s')}", name=row["id"], role=role,
                unit=unit, measured=row[name], left_out=left_out,
                predicted=None if means is None else getattr(means, name),
            )  # fmt: skip


def play(
    row: Mapping[str, Any],
    constants: Constants | None = None,
    ingress: IngressSpec | None = None,
) -> list[Served]:
    """What the clients of one row got."""
    load = Load(
        prompt=Lengths(mean=row["prompt"]), output=Lengths(mean=row["output"]),
        requests=row["requests"], rate_per_s=row["rate_per_s"], concurrency=row["concurrency"],
    )  # fmt: skip
    return served(
        read_decoder(MODELS[row["model"]]), catalog.node(NODE),
        EngineSettings(tensor_parallel_size=row["tensor_parallel"]), load,
        constants=constants or ENGINES[row["versions"]], engines=row["replicas"],
        ingress=replace(ingress or INGRESSES[row["versions"]], replicas=row["ingress"]),
    )  # fmt: skip


def served(
    decoder: Decoder, node: NodeSpec, settings: EngineSettings, load: Load, *,
    constants: Constants, ingress: IngressSpec, engines: int = 1,
) -> list[Served]:  # fmt: skip
    """What clients of engines on a node's GPUs get."""
    simulation = Simulation()
    fleet = Fleet(simulation, ingress, simulation.rng("serving/router"))
    for _ in range(engines):
        fleet.add(engine_on(simulation, decoder, node, settings, constants=constants))
    clients = Clients(simulation, fleet, load, simulation.rng("serving/clients"))
    clients.start()
    simulation.run(LONGEST)
    return clients.served


def means_of(served: list[Served]) -> Means:
    """Over all requests, and the time they took together."""
    took_ns = max(s.finished_ns for s in served) - min(s.sent_ns for s in served)
    return Means(
        requests_per_s=len(served) / (took_ns / 1e9),
        ttft_s=float(np.mean([s.ttft_s for s in served])),
        tpot_s=float(np.mean([s.tpot_s for s in served])),
    )
