"""Megatron-core on eight B200, predicted: step time, and memory of each pipeline stage.

``validation/data/published/b200_megatron.json``: Llama 3 and DeepSeek layers under tensor,
sequence, context, expert and pipeline parallelism. Nothing was fitted on these rows; kernels
measured on the same machine (``b200_kernels.json``) fixed what share of their isolated rates
products keep.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import MIB, to_seconds
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import (
    PUBLISHED,
    nodes,
    pipeline,
    ran_point,
)

FILE = "b200_megatron.json"
GPUS = 8


def b200_points(validation: Path) -> Iterator[Point]:
    """Milliseconds of a step; MiB allocated and reserved at most by stage, once per layout."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    seen = set()
    for row in document["rows"]:
        outcome = play(document, row)
        yield Point(
            family="b200/step time", name=row["case"], role="validation", unit="ms",
            measured=row["step_ms"], predicted=to_seconds(outcome.steady_step_ns) * 1e3,
            job=job_of(outcome, sweeps=(_sweep(row),), samples=_batch(row)),
        )  # fmt: skip
        yield ran_point(outcome, "b200", row["case"])
        layout = tuple(row[key] for key in ("model", "seq_len", "tp", "cp", "pp", "ep"))
        if layout in seen:
            continue
        seen.add(layout)
        for stage, memory in enumerate(outcome.memory):
            for kind in ("allocated", "reserved"):
                yield Point(
                    family=f"b200/{kind}", name=f"{row['case']} stage {stage}", role="validation",
                    unit="MiB", measured=row[f"{kind}_mib"][stage], job=job_of(outcome),
                    predicted=getattr(memory, f"{kind}_bytes") / MIB,
                )  # fmt: skip


def _sweep(row: dict[str, Any]) -> str:
    """Layouts and batches of one model and sequence length are choices of somebody."""
    return f"b200-{row['model']}-l{row['layers']}-s{row['seq_len']}"


def _batch(row: dict[str, Any]) -> int:
    """Samples per step."""
    return int(row["micro_batches"] * GPUS // (row["tp"] * row["pp"] * row["cp"]))


def play(document: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """Simulate one row."""
    mesh = Mesh(
        dp=GPUS // (row["tp"] * row["pp"] * row["cp"]), tp=row["tp"], pp=row["pp"], cp=row["cp"],
        ep=row["ep"],
    )  # fmt: skip
    config = json.dumps(document["models"][row["model"]])
    plan = TrainingPlan(
        model=_model(config, row["layers"], row["seq_len"], row["tp"]),
        mesh=mesh,
        engine="megatron",
        micro_batch=1,
        gradient_accumulation_steps=row["micro_batches"],
        precision="bf16",
        optimizer=Optimizer(),
        megatron=MegatronSettings(
            sequence_parallel=True, use_distributed_optimizer=True, cp_comm_type="a2a"
        ),
        pipeline=pipeline(mesh.pp),
    )  # fmt: skip
    return simulate(plan, nodes(catalog.node("hgx-b200-8"), 1), simulation=Simulation())


@cache
def _model(config: str, layers: int, seq_len: int, tp: int) -> Model:
    values = {
        **json.loads(config), "num_hidden_layers": layers, "max_position_embeddings": seq_len
    }  # fmt: skip
    return build(
        values, seq_len=seq_len, library="megatron_core", fused_loss=True, vocab_multiple=128 * tp
    )
