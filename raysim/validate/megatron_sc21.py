"""Megatron-LM's table of 2021, predicted: GPT from 3.6 to 530 billion parameters on A100.

``validation/data/published/megatron_sc21.json``. The two largest run the interleaved schedule with
three stages per rank, batched exchange and the paper's scatter/gather: each tensor-parallel rank
sends its share. Nothing was fitted on these rows.

Simplification: Megatron's fp16 optimizer is DeepSpeed's at stage 0, which is derived from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import simulate
from raysim.units import to_seconds
from raysim.validate.points import Point
from raysim.validate.published import nodes, rows

SEQ_LEN, VOCABULARY = 2048, 51_200


def sc21_points(validation: Path) -> Iterator[Point]:
    """TFLOP/s per GPU; without a pipeline, and with an interleaved one."""
    for row in rows(validation, "megatron_sc21.json"):
        kind = "interleaved" if row["pp"] > 1 else "one_stage"
        yield Point(
            family=f"sc21/{kind}", name=row["name"], role="validation", unit="TFLOP/s/GPU",
            measured=row["tflops_per_gpu"], predicted=tflops_per_gpu(row),
        )  # fmt: skip


def tflops_per_gpu(row: dict[str, Any]) -> float:
    """Of one row, by the paper's own count of FLOPs."""
    gpus: int = row["tp"] * row["pp"] * row["dp"]
    return step_flops(row) / (step_s(row) * gpus) / 1e12


def step_flops(row: dict[str, Any]) -> float:
    """96 B s l h^2 (1 + s/6h + V/16lh): section 5.1, recomputation included."""
    h: float = row["hidden"]
    layers: float = row["layers"]
    inner = 1 + SEQ_LEN / (6 * h) + VOCABULARY / (16 * layers * h)
    samples: int = row["global_batch"]
    return 96.0 * samples * SEQ_LEN * layers * h**2 * inner


def step_s(row: dict[str, Any]) -> float:
    """Seconds of one optimizer step of one row."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"], pp=row["pp"])
    pipeline = PipelineSettings()
    if mesh.pp > 1:
        pipeline = PipelineSettings(
            stages=mesh.pp,
            partition_method="blocks",
            schedule="interleaved",
            virtual_stages=row["virtual_stages"],
            overlap_p2p_comm=False,
        )
    config = {
        "model_type": "megatron_gpt", "hidden_size": row["hidden"], "num_layers": row["layers"],
        "num_attention_heads": row["heads"], "max_position_embeddings": SEQ_LEN,
        "padded_vocab_size": VOCABULARY, "moe_zeros": False,
    }  # fmt: skip
    plan = TrainingPlan(
        model=build(config, seq_len=SEQ_LEN),
        mesh=mesh,
        engine="deepspeed",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * mesh.dp),
        precision="fp16",
        optimizer=Optimizer(),
        activation_checkpointing="full",
        pipeline=pipeline,
    )
    where = nodes(catalog.node("dgx-a100-80-8"), -(-mesh.world // 8))
    outcome = simulate(plan, where, simulation=Simulation(), memory=False)
    return to_seconds(outcome.steady_step_ns)
