"""NeMo AutoModel's table of LoRA and pre-training on H100, predicted: torch's FSDP2.

``validation/data/published/automodel.json`` says what ran: one GPU, tensor parallelism beside FSDP2
on one and two nodes, context parallelism on eight. No row fixed a constant.

Simplified: modules are transformers', with norms in one kernel; what LoRA's dropout costs, which is
behind the adapter, is left out.
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
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Implementation, Model
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.fused_norm import with_fused_norms
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rate_point

FILE = "automodel.json"
FAMILY = "automodel"
NODE = "hgx-h100-8"
KERNEL: Implementation = "flash_attention_3"
"""Transformer Engine's best on Hopper, by the name that transformers has for it."""


def automodel_points(validation: Path) -> Iterator[Point]:
    """Rate and verdict of each row, and those left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(row, held["models"][row["model"]])
        samples = row["micro_batch"] * row["accumulation"] * outcome.plan.mesh.dp
        each = samples * row["seq_len"] / row["gpus"]
        yield rate_point(
            outcome,
            f"{FAMILY}/{'lora' if row['lora'] else 'pretraining'}",
            row["id"],
            row["tokens_per_s_per_gpu"],
            each,
        )
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], config: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    gpus, tp, cp = row["gpus"], row["tp"], row["cp"]
    several = gpus > 1
    plan = TrainingPlan(
        model=_model(json.dumps(config), json.dumps(row)),
        mesh=Mesh(dp=gpus // tp // cp, tp=tp, cp=cp),
        engine="fsdp" if several else "ddp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["accumulation"],
        precision="bf16",
        optimizer=Optimizer(type="AdamW", fused=not row["lora"]),
        fsdp=FsdpSettings(
            forward_prefetch=True, sync_every_micro_batch=True,
            sequence_parallel=row["sequence_parallel"], async_tensor_parallel=row["async_tp"],
        ),
        activation_checkpointing=row["recompute"],
        torch_compile=row["compile"],
        gradient_clipping=0.0,
    )  # fmt: skip
    where = nodes(catalog.node(NODE), -(-gpus // 8))
    return simulate(plan, where, simulation=Simulation())


@cache
def _model(config: str, said: str) -> Model:
    row = json.loads(said)
    plain = build(json.loads(config), seq_len=row["seq_len"], attention=KERNEL)
    model = plain.with_bodies(with_fused_norms)
    if not row["lora"]:
        return model
    lora = LoraConfig(r=16, target_modules=r".*_proj")
    return adapted(model, lora, checkpointed=row["recompute"] == "full")
