"""NVIDIA's tables of pre-training under NeMo, predicted: Megatron-core on H100 and GB200.

``validation/data/published/dgx_cloud.json`` (8 to 2,304 GPUs, bf16 and fp8), ``nemo_h100.json``
(an earlier release, fp8) and ``nemo_long.json`` (up to a million tokens a sample, on B200) say what
ran: Llama, GPT-3, Nemotron and Grok under every layout that NVIDIA recommends for them;
``mlperf_training.json`` says what MLPerf's submissions ran, on up to 11,616 GPUs. No row fixed a
constant.

Simplified: apex's distributed Adam is Megatron-core's distributed optimizer, which it came before,
and keeps fp32 masters even where its states are bf16; Megatron's own fused loss is Transformer
Engine's; user buffers work by their default methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Body, Model, Operator
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import MIB, to_seconds
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import (
    PUBLISHED,
    left_points,
    pipeline,
    ran_point,
    rate_point,
)
from raysim.validate.runs_megatron import bridge_cluster

CLOUD, SUMMARY, LONG = "dgx_cloud", "nemo_h100", "nemo_long"
MLPERF = "mlperf_training"
VOCABULARY_MULTIPLE = 128
"""``make_vocab_size_divisible_by`` of every recipe, times its tensor-parallel ranks."""
ELEMENT_BYTES = 2


def dgx_cloud_points(validation: Path) -> Iterator[Point]:
    """Seconds per step, verdicts, and the rows left out."""
    held = _held(validation, CLOUD)
    for row in held["rows"]:
        outcome = played(held, row)
        kind = "mixture" if outcome.plan.mesh.ep > 1 else row["machine"]
        yield from _step_points(outcome, f"{CLOUD}/{kind}_{row['precision']}", row)
    yield from left_points(held["left_out"], CLOUD)


def mlperf_points(validation: Path) -> Iterator[Point]:
    """Seconds per step, verdicts, and the rows left out."""
    held = _held(validation, MLPERF)
    for row in held["rows"]:
        outcome = played(held, row)
        model = held["recipes"][row["recipe"]]["model"].replace("-", "_")
        yield from _step_points(outcome, f"{MLPERF}/{model}_{row['machine']}", row)
    yield from left_points(held["left_out"], MLPERF)


def _step_points(outcome: StepOutcome, family: str, row: dict[str, Any]) -> Iterator[Point]:
    yield Point(
        family=family, name=row["id"], role="validation", unit="s", measured=row["step_s"],
        predicted=to_seconds(outcome.steady_step_ns),
        job=job_of(outcome, samples=row["global_batch"]),
    )  # fmt: skip
    yield ran_point(outcome, family.partition("/")[0], row["id"])


def nemo_points(validation: Path) -> Iterator[Point]:
    """Tokens per second and GPU, verdicts, and the rows left out."""
    held = _held(validation, SUMMARY)
    for row in held["rows"]:
        outcome = played(held, row)
        each = row["global_batch"] * held["recipes"][row["recipe"]]["seq_len"] / row["gpus"]
        yield rate_point(outcome, SUMMARY, row["id"], row["tokens_per_s_per_gpu"], each)
        yield ran_point(outcome, SUMMARY, row["id"])
    yield from left_points(held["left_out"], SUMMARY)


def nemo_long_points(validation: Path) -> Iterator[Point]:
    """TFLOP/s per GPU by NeMo's own count, verdicts, and the rows left out."""
    held = _held(validation, LONG)
    for row in held["rows"]:
        outcome = played(held, row)
        each = row["global_batch"] * row["seq_len"] / row["gpus"]
        teraflops = each * _token_flops(held["models"]["llama-8b"], row["seq_len"]) / 1e12
        yield rate_point(
            outcome, LONG, row["id"], row["tflops_per_gpu"], teraflops, unit="TFLOP/s/GPU"
        )
        yield ran_point(outcome, LONG, row["id"])
    yield from left_points(held["left_out"], LONG)


def _token_flops(model: dict[str, Any], seq_len: int) -> float:
    """``llama3`` of NeMo's ``flops_formulas.py``."""
    h, layers = model["hidden_size"], model["num_hidden_layers"]
    groups = model["num_key_value_heads"] / model["num_attention_heads"]
    inner = 12 + 12 * groups + 18 * model["intermediate_size"] / h + 12 * seq_len / h
    return float(layers * h**2 * (inner + 6 * model["vocab_size"] / (layers * h)))


def _held(validation: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (validation / PUBLISHED / f"{name}.json").read_text(encoding="utf-8")
    )
    return found


def played(held: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    recipe = held["recipes"][row["recipe"]] | row
    config = dict(held["models"][recipe["model"]])
    if "layers" in row:
        config["num_hidden_layers"] = row["layers"]
    where = bridge_cluster(held["machines"][row["machine"]], row["gpus"])
    return simulate(_plan(json.dumps(config), recipe), where, simulation=Simulation())


def _plan(config: str, r: dict[str, Any]) -> TrainingPlan:
    tp, pp, cp = r["tp"], r["pp"], r["cp"]
    mesh = Mesh(dp=r["gpus"] // (tp * pp * cp), tp=tp, pp=pp, cp=cp, ep=r["ep"])
    bucket = r["bucket_mib"]
    return TrainingPlan(
        model=_model(config, r["seq_len"], tp, r["attention"], fused_loss=r["fused_loss"]),
        mesh=mesh,
        engine="megatron",
        micro_batch=r["micro_batch"],
        gradient_accumulation_steps=r["global_batch"] // (r["micro_batch"] * mesh.dp),
        precision="bf16",
        optimizer=Optimizer(),
        bf16_optimizer_states=r["bf16_states"],
        fp8=Fp8Settings(
            recipe=r.get("scaling", "delayed"), classes=(), caches_weights=True,
            primary_weights=r["fp8_weights"],
        ) if r["precision"] == "fp8" else None,
        megatron=MegatronSettings(
            sequence_parallel=tp > 1, tp_comm_overlap=r["tp_overlap"],
            use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True,
            accumulate_allreduce_grads_in_fp32=r["fp32_gradients"], ddp_average_in_collective=True,
            ddp_bucket_size=bucket and round(bucket * MIB) // ELEMENT_BYTES,
            defer_embedding_wgrad_compute=r["deferral"] is not None,
            wgrad_deferral_limit=r["deferral"] or 0,
        ),
        activation_checkpointing=r["recompute"],
        cuda_graphs=r["cuda_graphs"],
        pipeline=pipeline(pp, r["vp"], ends=r["ends_count"]),
    )  # fmt: skip


@cache
def _model(config: str, seq_len: int, tp: int, attention: str, *, fused_loss: bool) -> Model:
    model = build(
        json.loads(config), seq_len=seq_len, library="megatron_core", fused_loss=fused_loss,
        vocab_multiple=VOCABULARY_MULTIPLE * tp,
    )  # fmt: skip
    return model.with_bodies(_flash) if attention == "flash_attention_2" else model


def _flash(body: Body) -> Body:
    """Transformer Engine hands attention to FlashAttention 2 (``NVTE_FUSED_ATTN=0``)."""

    def change(o: Operator) -> Operator:
        if o.attention is None:
            return o
        return replace(o, attention=replace(o.attention, implementation="flash_attention_2"))

    return body.with_operators(change)
