"""Published memory of training runs, predicted: what torch counted, and what ``nvidia-smi`` showed.

BigScience's runs of Megatron-DeepSpeed are played as they say: ZeRO-1 over a pipeline, or
BF16_Optimizer with fp32 gradients. What ``nvidia-smi`` shows of a process is what torch reserved,
CUDA's context and NCCL's buffers; people round it to whole GB. DeepSpeed's transformer of
``bf16_master_weight`` stands in as a GPT-2 without dropout and with a head of its own. Nothing was
fitted on any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.topology import Topology
from raysim.models.huggingface import build
from raysim.perf.compute import ComputeModel
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.memory.need import memory_need
from raysim.training.memory.peaks import rank_memory
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.units import GIB
from raysim.validate.llm_foundry import GPT2
from raysim.validate.points import Point
from raysim.validate.published import nodes, rows

NODES = {
    "A100 80GB SXM": "dgx-a100-80-8", "V100 32GB SXM2": "dgx-v100-32-8", "V100 16GB SXM2": "",
}  # fmt: skip


def megatron_plan(row: dict[str, Any]) -> TrainingPlan:
    """A row of BigScience's."""
    tp, pp = row["tp"], row["pp"]
    multiple = 128 * tp
    model = build(
        {
            "model_type": "megatron_gpt", "hidden_size": row["hidden"],
            "num_attention_heads": row["heads"], "num_layers": row["layers"],
            "max_position_embeddings": row["seq"],
            "padded_vocab_size": -(-row["vocab"] // multiple) * multiple,
        },
        seq_len=row["seq"], attention="eager",
    )  # fmt: skip
    return TrainingPlan(
        model=model,
        mesh=Mesh(pp=pp, dp=row["dp"], tp=tp),
        engine="deepspeed",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=4 * pp,
        precision="bf16" if row["precision"] == "bf16" else "fp16",
        grad_accum_dtype="fp32" if row["precision"] == "bf16" else None,
        optimizer=Optimizer(),
        zero=ZeroConfig(stage=1),
        activation_checkpointing="full" if row["checkpointed"] and pp == 1 else "none",
        pipeline=PipelineSettings(
            stages=pp,
            partition_method="type:ParallelTransformerLayer",
            activation_checkpoint_interval=int(row["checkpointed"]),
        ),
    )


def total_points(validation: Path) -> Iterator[Point]:
    """What ``nvidia-smi`` showed of the fullest GPU; of a run that failed, what the GPU has."""
    for row in rows(validation, "bigscience_gpu_memory.json"):
        why = row.get("left_out", "")
        node = NODES[row["gpu"]]
        if not why and not node:
            why = "no node with this GPU in the catalog"
        predicted = None
        if not why:
            plan = megatron_plan(row)
            where = nodes(catalog.node(node), -(-plan.mesh.world // 8))
            predicted = memory_need(plan, where)[0] / GIB
        used = row["nvidia_smi_gb"]
        if used is None:
            why = why or f"ran out of memory; predicted {predicted:.1f} GiB"
        yield Point(
            family="memory_total", name=row["id"], role="validation", unit="GiB",
            measured=used, predicted=predicted, left_out=why,
        )  # fmt: skip


def allocated_points(validation: Path) -> Iterator[Point]:
    """What torch had allocated after a step, and at most, under ZeRO-3."""
    for row in rows(validation, "zero3_allocated.json"):
        held, peak = zero3_bytes(row)
        for name, found in (("allocated", held), ("peak_allocated", peak)):
            yield Point(
                family=f"memory_zero3/{name}", name=row["id"], role="validation", unit="GiB",
                measured=row[f"{name}_gib"], predicted=found / GIB,
            )  # fmt: skip


def zero3_bytes(row: dict[str, Any]) -> tuple[int, int]:
    """Held after the step with the logits that the script keeps, and the most."""
    config = {
        **GPT2, "n_embd": row["hidden"], "n_head": row["heads"], "n_layer": row["layers"],
        "n_positions": row["seq"], "vocab_size": row["vocab"], "tie_word_embeddings": False,
        "activation_function": "gelu",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    }  # fmt: skip
    plan = TrainingPlan(
        model=build(config, seq_len=row["seq"], attention="eager"),
        mesh=Mesh(dp=row["gpus"]),
        engine="deepspeed",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=1,
        precision="bf16",
        optimizer=Optimizer(),
        zero=ZeroConfig(stage=3),
        activation_checkpointing="full" if row["checkpointed"] else "none",
        keeps_output=True,
        bf16_master_weights_and_grads=row["bf16_states"],
        bf16_optimizer_states=row["bf16_states"],
    )
    where = nodes(catalog.node("hgx-h100-8"), 1)
    gpu = catalog.gpu("H100-SXM-80GB")
    costs = ComputeModel(gpu)
    stages = build_stages(plan, costs)
    comms = Communicators(plan.mesh, Topology.build(where), folded=True, tied_stages=[])
    (program,) = compile_programs(plan, comms, stages, costs, feed=Feed(), steps=2)
    logits = row["micro_batch"] * row["seq"] * row["vocab"] * 2
    return sum(program.step_held[-1].values()) + logits, rank_memory(
        program, None, gpu, ()
    ).allocated_bytes
