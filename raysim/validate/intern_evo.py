"""InternEvo's table of InternLM on 8 to 1,024 A100, predicted: data parallel, states sharded.

``validation/data/published/intern_evo.json`` says what ran, and how: InternEvo's own modules
(``models.families.internevo``) and optimizer (``training.engines.internevo``), as its code of July
2023 has them. No row fixed a constant.

Simplified: samples are full.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.training.plan import InternEvoSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rate_point

FILE = "intern_evo.json"
FAMILY = "intern_evo"
SEQ_LEN = 2048


def intern_points(validation: Path) -> Iterator[Point]:
    """Rates of the two tables, verdicts, and the rows left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(row, held)
        each = row["micro_batch"] * row["micro_num"] * SEQ_LEN / row["tp"]
        yield rate_point(
            outcome, f"{FAMILY}/{row['table']}", row["id"], row["tokens_per_s_per_gpu"], each
        )
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], held: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    config = held["models"]["7B"] | {"dropout_selective_checkpoint": row["recompute"] == "none"}
    plan = TrainingPlan(
        model=_internlm(json.dumps(config)),
        mesh=Mesh(dp=row["gpus"] // row["tp"], tp=row["tp"]),
        engine="internevo",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["micro_num"],
        precision="bf16",
        optimizer=Optimizer(fused=False, foreach=False),
        internevo=InternEvoSettings(zero1=row["zero1"]),
        activation_checkpointing=row["recompute"],
    )
    return simulate(plan, cluster_of(held["machine"], row["gpus"]), simulation=Simulation())


def cluster_of(machine: dict[str, Any], gpus: int) -> ClusterSpec:
    """Its nodes, of eight GPUs with four ports each."""
    node = catalog.node(machine["node"])
    node = replace(
        node, nic=catalog.nic(machine["nic"]), nic_count=machine["nic_count"],
        cpu=catalog.cpu(machine["cpu"]),
    )  # fmt: skip
    return nodes(node, -(-gpus // node.gpu_count))


@cache
def _internlm(config: str) -> Model:
    return build(json.loads(config), seq_len=SEQ_LEN, library="internevo")
