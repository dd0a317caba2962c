"""vTrain's measured iterations, predicted: 714 GPT shapes under Megatron-DeepSpeed on A100.

``validation/data/published/vtrain.json``. No constant was fitted on these rows, but one setting
that neither they nor their source say is read off them. On many nodes every layer is checkpointed:
3.6 B parameters with micro-batches of 4 and more would not fit otherwise. On one node none is: the
largest would need 59 of 80 GB, and hidden 2048 with unfused attention runs at up to 144 TFLOP/s of
model FLOPs, which with recomputation were 192, where Megatron's own 1.7 B reached 137 (its SC'21
paper).

Where kernels are short (micro-batches of one, many tensor-parallel ranks) the host decides: an EPYC
7742 dispatching Megatron's layers (``perf.host``), under the Python and torch its constants were
measured with, not those of 2023; TorchScript's fused functions cost it no more than others. Those
rows are predicted 20 to 40 % too fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.models.table import Model
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import to_seconds
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import nodes, rows

VOCABULARY = 51_200
"""50,257 padded by Megatron for eight tensor-parallel ranks; the rows do not say."""
FUSED_HEADS = 4
"""Megatron's softmax kernel takes multiples of so many heads times samples
(``megatron/model/fused_softmax.py``, ``is_kernel_available``); else torch's runs."""
NICS = 4
"""200 Gb/s HDR InfiniBand per node, half of a DGX A100's."""


def vtrain_points(validation: Path) -> Iterator[Point]:
    """Milliseconds of one iteration; shapes measured on one node, and on eight or 32."""
    for row in rows(validation, "vtrain.json"):
        outcome = iteration(row)
        yield Point(
            family=f"vtrain/{row['nodes']}_node", name=_name(row), role="validation", unit="ms",
            measured=row["iteration_ms"], predicted=to_seconds(outcome.steady_step_ns) * 1e3,
            job=job_of(outcome, sweeps=(_sweep(row),), samples=row["global_batch"]),
        )  # fmt: skip


def iteration_ms(row: dict[str, Any]) -> float:
    """One optimizer step of one row."""
    return to_seconds(iteration(row).steady_step_ns) * 1e3


def iteration(row: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"], pp=row["pp"])
    recompute = row["nodes"] == "multi"
    plan = TrainingPlan(
        model=_model(
            row["hidden"],
            row["heads"],
            row["layers"],
            row["seq_len"],
            fused=row["heads"] // row["tp"] * row["micro_batch"] % FUSED_HEADS == 0,
        ),
        mesh=mesh,
        engine="deepspeed",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["global_batch"] // (row["micro_batch"] * mesh.dp),
        precision="fp16",
        optimizer=Optimizer(),
        zero=ZeroConfig(stage=0),
        activation_checkpointing="full" if recompute else "none",
        pipeline=PipelineSettings(
            stages=mesh.pp,
            partition_method="type:ParallelTransformerLayer",
            activation_checkpoint_interval=int(recompute),
        ),
    )
    node = replace(catalog.node("dgx-a100-80-8"), nic_count=NICS)
    where = nodes(node, max(1, row["gpus"] // 8))
    return simulate(plan, where, simulation=Simulation(), memory=False)


@cache
def _model(hidden: int, heads: int, layers: int, seq_len: int, *, fused: bool) -> Model:
    config = {
        "model_type": "megatron_gpt", "hidden_size": hidden, "num_attention_heads": heads,
        "num_layers": layers, "max_position_embeddings": seq_len, "padded_vocab_size": VOCABULARY,
        "masked_softmax_fusion": fused,
    }  # fmt: skip
    return build(config, seq_len=seq_len)


def _sweep(row: dict[str, Any]) -> str:
    """Rows of one model on as many GPUs; mesh, micro-batch and global batch were chosen."""
    model = f"h{row['hidden']} L{row['layers']} a{row['heads']} s{row['seq_len']}"
    return f"{model}, {row['gpus']} GPUs"


def _name(row: dict[str, Any]) -> str:
    shape = f"h{row['hidden']}-l{row['layers']}-s{row['seq_len']}"
    mesh = f"tp{row['tp']}-dp{row['dp']}-pp{row['pp']}"
    return f"{shape}-{mesh}-mbs{row['micro_batch']}-gbs{row['global_batch']}"
