"""torchtune's tables of memory and speed, predicted: one A100, and eight.

``validation/data/published/torchtune.json`` says what ran: a 3 B Llama to which one technique after
the other is added, and 70 B and 405 B under FSDP2. No row fixed a constant.

Simplified: modules are transformers'; attention, in which samples of a pack do not see each other,
is priced as one causal one over the pack; activations are sent to the host as DeepSpeed does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.four_bit import in_four_bits
from raysim.models.huggingface import build
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Body, Model, Operator, Saved
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import GIB
from raysim.validate.job import OLD_SDPA, job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rate_point

FILE = "torchtune.json"
FAMILY = "torchtune"
TARGETS = ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def torchtune_points(validation: Path) -> Iterator[Point]:
    """Rate, peak and verdict of each row, and those left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(row, held["models"][row["model"]])
        tokens = row["micro_batch"] * row["seq_len"] * row["gpus"]
        yield rate_point(
            outcome, f"{FAMILY}/speed", row["id"], row["tokens_per_s"], tokens, unit="tokens/s",
            role=row.get("use", "validation"),
        )  # fmt: skip
        yield Point(
            family=f"{FAMILY}/memory", name=row["id"], role="validation", unit="GiB",
            measured=row["memory_gib"], predicted=outcome.fullest.allocated_bytes / GIB,
            job=job_of(outcome),
        )  # fmt: skip
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], config: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    gpus, offload = row["gpus"], row.get("cpu_offload", False)
    plan = TrainingPlan(
        model=_model(json.dumps(config), json.dumps(row)),
        mesh=Mesh(dp=gpus),
        engine="fsdp" if gpus > 1 else "ddp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=1,
        precision="bf16",
        optimizer=Optimizer(type="AdamW"),
        fsdp=FsdpSettings(cpu_offload=offload, wrap_ends=True),
        activation_checkpointing=row["recompute"],
        cpu_checkpointing=row["offload_activations"],
        torch_compile=row["compile"],
        gradient_clipping=0.0,
    )
    return simulate(plan, nodes(catalog.node(row["machine"]), 1), simulation=Simulation())


@cache
def _model(config: str, said: str) -> Model:
    row = json.loads(said)
    model = build(json.loads(config), seq_len=row["seq_len"], attention=OLD_SDPA)
    if row["chunked_loss"]:
        model = model.with_bodies(_loss)
    if row["method"] == "full":
        return model
    if row["method"] == "qlora":  # torchao's NF4, which scales the scales
        model = in_four_bits(model, double=True, shards_scales=True)
    lora = LoraConfig(r=row["rank"], target_modules=TARGETS)
    return adapted(model, lora, checkpointed=True)


def _loss(body: Body) -> Body:
    """``CEWithChunkedOutputLoss``: in fp32 by eighths, compiled, so that 16-bit logits are kept."""
    return body.with_operators(_chunked)


def _chunked(o: Operator) -> Operator:
    if o.kind != "loss":
        return o
    (logits, _, labels) = o.saves
    kept = Saved(name=logits.name, numel=logits.numel)
    return replace(o, saves=(kept, labels), scratch=(), scratch_backward=())
