"""vTrain's iterations, predicted: 714 GPT shapes under Megatron-DeepSpeed on A100.

``validation/data/published/vtrain.json``. No constant was fitted on these rows, but one setting
that neither they nor their source say is read off them: on many nodes every layer is checkpointed
(3.6 B parameters with micro-batches of 4 and more would not fit otherwise), on one node none is.

The 15 rows on many nodes are runs. The 699 on one node are called measured too, but no machine was
timed: they are what vTrain's own predictor composes from kernels it profiled. Over layers they are
linear (the median of 105 groups to 4 in a million), and from two to four data-parallel ranks an
iteration of 12 layers of width 2048 gets 0.849 ms *faster*, which is its table of all-reduces read
as bytes over bus bandwidth (1,549 MiB at 197.28 and 221.86 GB/s: 0.849 ms; ``predictor.py``,
``compute_comm_time``). What they hold is said there as well: a profile of one layer, with the gaps
its Python left while being traced, all-reduces one after the other, and 50,257 // tp columns of
logits, an odd number without tensor parallelism. They are kept as a check of kernels, and have no
part in what raysim says of its own errors on runs (``job`` is None). Where kernels are short it is
20 to 40 % below them: a traced host is slower, and it hides what they add up.
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
from raysim.validate.published import nodes, ran_point, rows

VOCABULARY = 51_200
"""Of the runs: 50,257 padded by Megatron for eight ranks; the rows do not say."""
PROFILED_VOCABULARY = 50_257
"""Of the sums, not padded: each rank has a ``tp``-th, rounded down (``gpt_modeling.py``)."""
FUSED_HEADS = 4
"""Megatron's softmax kernel takes multiples of so many heads times samples
(``megatron/model/fused_softmax.py``, ``is_kernel_available``); else torch's runs."""
NICS = 4
"""200 Gb/s HDR InfiniBand per node, half of a DGX A100's."""


def vtrain_points(validation: Path) -> Iterator[Point]:
    """Milliseconds of one iteration; shapes measured on one node, and on eight or 32."""
    for row in rows(validation, "vtrain.json"):
        outcome = iteration(row)
        run = row["nodes"] == "multi"
        job = job_of(outcome, sweeps=(_sweep(row),), samples=row["global_batch"]) if run else None
        yield Point(
            family=f"vtrain/{row['nodes']}_node", name=_name(row), role="validation", unit="ms",
            measured=row["iteration_ms"], predicted=to_seconds(outcome.steady_step_ns) * 1e3,
            job=job,
        )  # fmt: skip
        if run:
            yield ran_point(outcome, "vtrain", _name(row))


def iteration_ms(row: dict[str, Any]) -> float:
    """One optimizer step of one row."""
    return to_seconds(iteration(row).steady_step_ns) * 1e3


def iteration(row: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"], pp=row["pp"])
    recompute = row["nodes"] == "multi"
    profiled = PROFILED_VOCABULARY // mesh.tp * mesh.tp
    plan = TrainingPlan(
        model=_model(
            row["hidden"],
            row["heads"],
            row["layers"],
            row["seq_len"],
            VOCABULARY if row["nodes"] == "multi" else profiled,
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
    return simulate(plan, where, simulation=Simulation(), memory=row["nodes"] == "multi")


@cache
def _model(
    hidden: int, heads: int, layers: int, seq_len: int, vocabulary: int, *, fused: bool
) -> Model:
    config = {
        "model_type": "megatron_gpt", "hidden_size": hidden, "num_attention_heads": heads,
        "num_layers": layers, "max_position_embeddings": seq_len, "padded_vocab_size": vocabulary,
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
