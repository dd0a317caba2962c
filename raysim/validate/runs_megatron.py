"""Megatron-core and its ancestor, predicted: sequence parallelism, interleaving, experts.

Rows of ``training_runs.json`` whose engine is ``megatron_core`` are Korthikanti et al.'s, on
Megatron-LM of 2022: its all-reduces of input gradients run beside the weight gradients, its
pipeline messages do not. ``megatron_bridge.json`` are mixtures of experts in bf16 on 64 and 256
GPUs, from NVIDIA's tables. Nothing was fitted on any of them.

Simplified: a recipe that captures attention, router and what precedes the dispatch in CUDA graphs
is played as if forward and backward were captured whole; one that captures the router alone as if
nothing were. Attention sinks of GPT-OSS cost nothing.
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
from raysim.training.plan import MegatronSettings, TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.points import Point
from raysim.validate.published import (
    PUBLISHED,
    left_points,
    nodes,
    pipeline,
    ran_point,
    rate_point,
)

FILE = "megatron_bridge.json"
BUCKET = 128 * 2**20
"""Elements, ``training/comm_overlap.py`` of Megatron-Bridge."""
SEGMENT_GPUS = 64
"""GPUs of a rack that a job over several racks uses: its trays are a divisor of the job's."""


def paper_plan(row: dict[str, Any]) -> TrainingPlan:
    """The step of a row of ``training_runs.json`` on Megatron-LM of 2022."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"], pp=row["pp"])
    sharded = row.get("sequence_parallel", False)
    chunks = row.get("virtual_stages", 1)
    return TrainingPlan(
        model=_gpt(row["hidden"], row["heads"], row["layers"], row["seq_len"], row["vocab"]),
        mesh=mesh,
        engine="megatron",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * mesh.dp),
        precision=row["precision"],
        optimizer=Optimizer(),
        megatron=MegatronSettings(
            sequence_parallel=sharded, accumulate_allreduce_grads_in_fp32=False
        ),
        activation_checkpointing=row["recompute"],
        pipeline=PipelineSettings(
            stages=mesh.pp, partition_method="blocks",
            schedule="interleaved" if chunks > 1 else "megatron_1f1b",
            virtual_stages=chunks if chunks > 1 else None, overlap_p2p_comm=False,
            # each tensor-parallel rank sends its share, which it has anyhow when sequences are cut
            pipe_partitioned=not sharded, grad_partitioned=not sharded,
        ),
    )  # fmt: skip


@cache
def _gpt(hidden: int, heads: int, layers: int, seq_len: int, vocab: int) -> Model:
    config = {
        "model_type": "megatron_gpt", "hidden_size": hidden, "num_attention_heads": heads,
        "num_layers": layers, "max_position_embeddings": seq_len, "padded_vocab_size": vocab,
    }  # fmt: skip
    return build(config, seq_len=seq_len, attention="eager")


def bridge_points(validation: Path) -> Iterator[Point]:
    """Tokens per second and GPU of each row, and every row left out with why."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in document["rows"]:
        outcome = play(document, row)
        each = row["global_batch"] * row["seq_len"] / row["gpus"]
        name = f"{row['release']} {row['model']} {row['gpu']} {row['seq_len']}"
        yield rate_point(outcome, "runs/megatron_bridge", name, row["tokens_per_s_per_gpu"], each)
        yield ran_point(outcome, "megatron_bridge", name)
    yield from left_points(document["left_out"], "runs")


def play(document: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """Simulate one row."""
    where = bridge_cluster(document["nodes"][row["gpu"]], row["gpus"])
    plan = bridge_plan(json.dumps(document["models"][row["model"]]), row)
    return simulate(plan, where, simulation=Simulation())


def bridge_cluster(node: str, gpus: int) -> ClusterSpec:
    """Nodes enough; of racks, as many trays each as a segment has."""
    spec = catalog.node(node)
    if spec.nvlink_domain:
        spec = replace(spec, nvlink_domain=SEGMENT_GPUS)
    return nodes(spec, -(-gpus // spec.gpu_count))


def bridge_plan(config: str, row: dict[str, Any]) -> TrainingPlan:
    """The step of a row of ``megatron_bridge.json``."""
    mesh = Mesh(dp=row["gpus"] // row["pp"], pp=row["pp"], ep=row["ep"])
    modules = tuple(row["recompute"])
    return TrainingPlan(
        model=_mixture(config, row["seq_len"]),
        mesh=mesh,
        engine="megatron",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * mesh.dp),
        precision="bf16",
        optimizer=Optimizer(),
        megatron=MegatronSettings(
            use_distributed_optimizer=True, overlap_grad_reduce=True, overlap_param_gather=True,
            accumulate_allreduce_grads_in_fp32=False, ddp_average_in_collective=True,
            ddp_bucket_size=BUCKET,
            moe_token_dispatcher=row["dispatcher"], recompute_modules=modules,
        ),
        activation_checkpointing="selective" if modules else "none",
        cuda_graphs=row["cuda_graphs"],
        pipeline=pipeline(
            mesh.pp, row["vp"], ends=row.get("ends_count", False),
            layers_per_stage=tuple(row.get("layers_per_stage", ())),
        ),
    )  # fmt: skip


@cache
def _mixture(config: str, seq_len: int) -> Model:
    return build(
        json.loads(config), seq_len=seq_len, library="megatron_core", fused_loss=True,
        vocab_multiple=128,
    )  # fmt: skip
