"""Qwen's table of fine-tuning on A100: LoRA and all weights, 1.8 to 72 B, step time and memory.

``validation/data/published/qwen_finetuning.json``; no row fixed a constant. The first Qwen is no
model of transformers: Llama's table stands for it, with one projection for query, key and value and
flash-attn's norm, as its remote code has them.

Simplified: its rotary embedding is Llama's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.lora import LoraConfig, adapted
from raysim.models.table import Body, Model, Module, Parameter
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import GIB, to_seconds
from raysim.validate.fused_norm import fused_norm
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rows

FILE = "qwen_finetuning.json"
FAMILY = "qwen_finetuning"
SPLIT = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
FUSED = "self_attn.c_attn"
TARGETS = ("c_attn", "o_proj", "gate_proj", "up_proj", "down_proj")
"""By Llama's names: c_attn, both c_proj, w2 and w1."""
MICRO_BATCHES = 8


def qwen_points(validation: Path) -> Iterator[Point]:
    """Step time and memory of each row, and those left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text())
    for row in rows(validation, FILE):
        outcome = played(row, held["models"][row["model"]])
        yield Point(
            family=f"{FAMILY}/{row['method']}", name=row["id"], role="validation", unit="s",
            measured=row["seconds"], predicted=to_seconds(outcome.steady_step_ns),
            job=job_of(outcome, samples=MICRO_BATCHES * row["gpus"]),
        )  # fmt: skip
        yield Point(
            family=f"{FAMILY}/memory", name=row["id"], role="validation", unit="GiB",
            measured=row["memory_gib"],
            predicted=outcome.fullest.peak_bytes * row["gpus"] / GIB, job=job_of(outcome),
        )  # fmt: skip
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], shape: dict[str, int]) -> StepOutcome:
    """One row, simulated."""
    sharded = row["method"] == "full" or row["gpus"] > 1
    hidden = shape["hidden"]
    plan = TrainingPlan(
        model=_tuned(row, qwen(shape, row["seq_len"]), sharded=sharded),
        mesh=Mesh(dp=row["gpus"]),
        engine="deepspeed" if sharded else "ddp",
        micro_batch=1,
        gradient_accumulation_steps=MICRO_BATCHES,
        precision="bf16",
        # The Trainer's adamw_torch goes through torch's lists of tensors; DeepSpeed has its own.
        optimizer=Optimizer(type="AdamW", fused=sharded),
        zero=ZeroConfig(
            stage=3 if sharded else 0,
            # "auto", as the Trainer fills it
            reduce_bucket_size=hidden * hidden,
            stage3_prefetch_bucket_size=int(0.9 * hidden * hidden),
            stage3_param_persistence_threshold=10 * hidden,
        ),
        activation_checkpointing="full",
    )
    where = nodes(catalog.node("dgx-a100-80-8"), 1)
    return simulate(plan, where, simulation=Simulation())


def _tuned(row: dict[str, Any], model: Model, *, sharded: bool) -> Model:
    if row["method"] == "full":
        return model
    saved = ("embed_tokens", "lm_head") if row["method"] == "lora_emb" else ()
    config = LoraConfig(
        r=64, lora_dropout=0.05, target_modules=TARGETS, modules_to_save=saved,
        fp32=row["peft"] == "0.5" and not sharded,
    )  # fmt: skip
    return adapted(model, config, checkpointed=True)


def qwen(shape: dict[str, int], seq_len: int) -> Model:
    """The model of one size."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape["hidden"], "intermediate_size": shape["width"],
        "num_hidden_layers": shape["layers"], "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["heads"], "vocab_size": shape["vocab"],
        "max_position_embeddings": seq_len, "tie_word_embeddings": False,
    }  # fmt: skip
    made = build(config, seq_len=seq_len, attention="flash_attention_2")
    return made.with_bodies(_body)


def _body(body: Body) -> Body:
    modules = [fused_norm(m) for m in body.modules]
    parts = [m for m in modules if m.name in SPLIT]
    if parts:
        at = modules.index(parts[0])
        modules = [m for m in modules if m not in parts]
        modules.insert(at, _joined(parts))
    return replace(body, modules=tuple(modules))


def _joined(parts: Sequence[Module]) -> Module:
    """One projection, with a bias, in the place of three."""
    (o, *_), width = parts[0].operators, sum(m.operators[0].output for m in parts)
    assert o.gemm is not None
    rows_, k, n = o.gemm.rows, o.gemm.k, sum(p.shape[0] for m in parts for p in m.parameters)
    moved = rows_ * k + width
    product = replace(
        o, name=FUSED, flops=2.0 * rows_ * k * n, moved=moved, moved_backward=2.0 * moved + width,
        gemm=replace(o.gemm, n=n), output=width, kernels_backward=3, result=f"{FUSED}.out",
    )  # fmt: skip
    names = (
        Parameter(name=f"{FUSED}.weight", shape=(n, k)),
        Parameter(name=f"{FUSED}.bias", shape=(n,)),
    )
    return Module(name=FUSED, cls="Linear", operators=(product,), parameters=names)
