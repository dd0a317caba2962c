"""LitGPT's tables of memory, predicted: fine-tuning on one to four GPUs of 24 and 40 GB.

``validation/data/published/litgpt.json`` says what ran: LoRA, 4-bit weights, all weights; peaks as
torch counts them, and runs that ended out of memory. No row fixed a constant.

Modules are those of transformers and PEFT, and keep for backward what LitGPT's keep (counted with
saved-tensor hooks on its own code): queries, keys and values are one projection with one adapter,
and reach attention with as many heads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.four_bit import in_four_bits
from raysim.models.huggingface import build
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Attention, Body, Implementation, Model, Operator, Saved
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.job import OLD_SDPA, job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, memory_point, nodes

FILE = "litgpt.json"
FAMILY = "litgpt"
GB = 1e9
"""``torch.cuda.max_memory_allocated() / 1e9`` is what its scripts print."""
NODES = {
    ("A100-40GB", 1): "dgx-a100-40-8", ("A100-40GB", 2): "dgx-a100-40-8",
    ("A100-40GB", 4): "dgx-a100-40-8", ("A10G", 1): "g5.4xlarge", ("A10G", 4): "g5.12xlarge",
}  # fmt: skip
ATTENTION = ("q_proj", "v_proj", "query_key_value", "qkv_proj")
LINEARS = (
    *ATTENTION, "k_proj", "o_proj", "dense", "gate_proj", "up_proj", "gate_up_proj", "down_proj",
    "fc1", "fc2", "lm_head",
)  # fmt: skip
OF_KEY_OR_VALUE = re.compile(r"[kv]_proj(\.mask|\.dropped)$")
TARGETS = {"qv": ATTENTION, "all": LINEARS}


def litgpt_points(validation: Path) -> Iterator[Point]:
    """Peak and verdict of each row, and those left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(row, held["models"][row["model"]])
        fullest = outcome.fullest
        if "memory_gb" in row:
            kind = "4 bits" if row.get("quantize") else row["method"]
            yield Point(
                family=f"{FAMILY}/{kind}", name=row["id"], role="validation", unit="GB",
                measured=row["memory_gb"], predicted=fullest.allocated_bytes / GB,
                job=job_of(outcome),
            )  # fmt: skip
        yield memory_point(
            FAMILY, row["id"], fullest.peak_bytes, outcome.costs.gpu,
            ran_out=row.get("out_of_memory", False),
        )  # fmt: skip
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], config: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    gpus = row["gpus"]
    plan = TrainingPlan(
        model=_model(json.dumps(config), json.dumps(row)),
        mesh=Mesh(dp=gpus),
        engine="fsdp" if gpus > 1 else "ddp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=2,
        precision="bf16",
        optimizer=Optimizer(type="AdamW", fused=False),
        fsdp=FsdpSettings(version=1, use_orig_params=True, trained_apart=False),
        activation_checkpointing="full" if gpus > 1 else "none",
        keeps_output=True,
        gradient_clipping=0.0,
    )  # fmt: skip
    where = nodes(catalog.node(NODES[row["machine"], gpus]), 1)
    return simulate(plan, where, simulation=Simulation())


@cache
def _model(config: str, said: str) -> Model:
    row = json.loads(said)
    shape = json.loads(config)
    attention: Implementation = "eager" if shape["model_type"] == "gemma2" else OLD_SDPA
    model = build(shape, seq_len=row["seq_len"], attention=attention).with_bodies(_loss)
    if row["method"] == "full":
        return model
    quantize = row["quantize"]
    if quantize is not None:  # every linear, the head among them
        model = in_four_bits(
            model, double=quantize == "nf4-dq", skipped=("wte",), keeps_inputs=True
        ).with_bodies(_from_half)
    lora = LoraConfig(
        r=row["rank"], lora_dropout=row["dropout"], target_modules=TARGETS[row["targets"]]
    )
    return adapted(model, lora).with_bodies(partial(_as_one, pads=row["targets"] == "qv"))


def _as_one(body: Body, *, pads: bool) -> Body:
    """What one adapter on query, key and value keeps, and attention behind it.

    ``pads``: ``index_copy`` puts queries and values among zeros for keys, and keeps them.
    """
    cores = [o for o in body.operators if o.attention is not None]
    if not cores:
        return body

    def change(o: Operator) -> Operator:
        saves = tuple(replace(s, name=OF_KEY_OR_VALUE.sub(r"q_proj\1", s.name)) for s in o.saves)
        if o is cores[0] and o.attention is not None:
            saves = _core(o.attention, saves, pads=pads)
        return replace(o, saves=saves)

    return body.with_operators(change)


def _core(a: Attention, saves: tuple[Saved, ...], *, pads: bool) -> tuple[Saved, ...]:
    """Values are a view of the whole projection, or expanded to all heads, as keys are then."""
    head = float(a.q_len * a.head_dim)
    source = Saved(name="zero_pad", numel=head * (a.heads + a.kv_heads))
    added = (source,) if pads else ()
    if a.implementation == "eager":
        return (*saves, *added)
    q, k, v, *rest = saves
    whole = 3 * a.heads if a.kv_heads == a.heads else a.heads
    wide = (replace(k, numel=head * a.heads), replace(v, numel=head * whole))
    return (q, *wide, *rest, *added)


def _from_half(body: Body) -> Body:
    """Lightning quantises from fp16, so that what is made 16-bit again is cast to bf16: two."""

    def twice(o: Operator) -> Operator:
        if o.kind != "gemm":
            return o
        casts = tuple(replace(s, name=f"{s.name}.cast") for s in o.scratch if s.fixed)
        return replace(o, scratch=(*o.scratch, *casts), scratch_backward=(*o.scratch, *casts))

    return body.with_operators(twice)


def _loss(body: Body) -> Body:
    """``chunked_cross_entropy``: by chunks, in 16 bits; logits, softmax and gradient are whole."""
    return body.with_operators(_chunked)


def _chunked(o: Operator) -> Operator:
    if o.kind != "loss":
        return o
    (logits, softmax, labels) = o.saves
    narrow = replace(softmax, dtype="compute")
    gradient = Saved(name="loss.grad_logits", numel=logits.numel)
    return replace(o, saves=(logits, narrow, labels), scratch=(), scratch_backward=(gradient,))
