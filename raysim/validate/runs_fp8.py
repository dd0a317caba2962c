"""Published training runs in fp8, predicted: ``validation/data/published/fp8_runs.json``.

Megatron-Bridge on H100, B200, GB200 and GB300 (current scaling, mxfp8), MosaicML's MPT with
Transformer Engine under FSDP1. No row fixed a constant. What a source leaves unsaid is read from
the tree it is in, and said in the file (``assumed``); torchtitan's are in ``runs_torchtitan``.

Rows of ``fp8_mbridge_tp`` exchange through user buffers, here by Transformer Engine's own methods.
Not modelled: the recipes' SMs for them, weights gathered beside the optimizer step.
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
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.points import Point
from raysim.validate.published import (
    PUBLISHED,
    left_points,
    mpt_outcome,
    nodes,
    pipeline,
    ran_point,
    rate_point,
    reserved_point,
)

FILE = "fp8_runs.json"


def fp8_points(validation: Path) -> Iterator[Point]:
    """Every row that raysim can express, and every other one with why not."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in document["rows"]:
        yield from points_of(document, row)
    yield from left_points(document["left_out"], "runs")


def points_of(document: dict[str, Any], row: dict[str, Any]) -> Iterator[Point]:
    """Tokens per second and GPU, and reserved memory where the row has it."""
    outcome = play(document, row)
    family, name, role = f"runs/fp8_{row['family']}", row["id"], row["use"]
    tokens = row["global_batch"] * row["seq_len"] / row["gpus"]
    if row["engine"] == "composer":
        plan = outcome.plan  # its batch is not a multiple of every layout
        samples = plan.micro_batch * outcome.micro_batches * plan.mesh.dp
        tokens = samples * row["seq_len"] / row["gpus"]
    yield rate_point(outcome, family, name, row["tokens_per_s_per_gpu"], tokens, role=role)
    yield ran_point(outcome, f"fp8_{row['family']}", name)
    if "reserved_gib" in row:
        yield reserved_point(outcome, f"fp8_{row['family']}", row)


def play(document: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """Simulate one row."""
    if row["engine"] == "composer":
        # llm-foundry's fc_type: te; the stand-in's linears are GPT-2's Conv1D
        return mpt_outcome(row, Fp8Settings(recipe=row["recipe"], classes=("Conv1D",)))
    node = catalog.node(document["machines"][row["machine"]]["node"])
    where = nodes(node, -(-row["gpus"] // node.gpu_count))
    return simulate(_megatron(document, row), where, simulation=Simulation())


def _megatron(document: dict[str, Any], row: dict[str, Any]) -> TrainingPlan:
    """Megatron-Bridge's performance recipes."""
    ways = row["tp"] * row["pp"] * row["cp"]
    mesh = Mesh(dp=row["gpus"] // ways, tp=row["tp"], pp=row["pp"], cp=row["cp"])
    chunks = row["virtual_stages"]
    ends = document["models"][row["model"]]["num_hidden_layers"] % (mesh.pp * chunks) != 0
    return TrainingPlan(
        model=_model(json.dumps(document["models"][row["model"]]), row["seq_len"], row["tp"]),
        mesh=mesh,
        engine="megatron",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * mesh.dp),
        precision="bf16",
        optimizer=Optimizer(),
        fp8=Fp8Settings(
            recipe=row["recipe"], classes=(), caches_weights=True, keeps_core_output=True,
            primary_weights=True, reuses_gradient_buffer=True,
        ),
        megatron=MegatronSettings(
            sequence_parallel=row["tp"] > 1, tp_comm_overlap=row["tp"] > 1,
            use_distributed_optimizer=True,
            overlap_grad_reduce=True, overlap_param_gather=True,
            accumulate_allreduce_grads_in_fp32=False,
        ),
        pipeline=pipeline(mesh.pp, chunks, ends=ends),
        cuda_graphs=row.get("cuda_graphs", False),
    )  # fmt: skip


@cache
def _model(config: str, seq_len: int, tp: int) -> Model:
    values = {"model_type": "llama", **json.loads(config), "max_position_embeddings": seq_len}
    return build(
        values, seq_len=seq_len, library="megatron_core", fused_loss=True, vocab_multiple=128 * tp
    )
