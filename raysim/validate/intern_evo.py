"""InternEvo's table of InternLM on 8 to 1,024 A100, predicted: data parallel, states sharded.

``validation/data/published/intern_evo.json`` says what ran. InternEvo's optimizer sums gradients in
buckets beside the last backward and sends weights from their owners after the step, over all
data-parallel ranks or over those of a node: Megatron-core's distributed optimizer, in as many
instances as there are nodes, stands for it, with gradients in 16 bits. No row fixed a constant.

Simplified: modules are Megatron-core's, which fuse as InternLM's of apex and flash-attn do, without
biases, and keep what norms give, which InternEvo makes again where layers are not checkpointed;
sums over the ranks of a node and over nodes are two collectives where it has one.
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
from raysim.units import to_seconds
from raysim.validate.job import job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point

FILE = "intern_evo.json"
FAMILY = "intern_evo"
SEQ_LEN = 2048
BUCKET = 512 * 2**20
"""Elements: ``reduce_bucket_size`` of ``configs/7B_sft.py``."""


def intern_points(validation: Path) -> Iterator[Point]:
    """Rates of the two tables, verdicts, and the rows left out."""
    held = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in held["rows"]:
        outcome = played(row, held)
        each = row["micro_batch"] * row["micro_num"] * SEQ_LEN / row["tp"]
        yield Point(
            family=f"{FAMILY}/{row['table']}", name=row["id"], role="validation",
            unit="tokens/s/GPU", measured=row["tokens_per_s_per_gpu"],
            predicted=each / to_seconds(outcome.steady_step_ns),
            job=job_of(outcome, counted=each),
        )  # fmt: skip
        yield ran_point(outcome, FAMILY, row["id"])
    yield from left_points(held["left_out"], FAMILY)


def played(row: dict[str, Any], held: dict[str, Any]) -> StepOutcome:
    """One row, simulated."""
    mesh = Mesh(dp=row["gpus"] // row["tp"], tp=row["tp"])
    plan = TrainingPlan(
        model=_internlm(json.dumps(held["models"]["7B"])),
        mesh=mesh,
        engine="megatron",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row["micro_num"],
        precision="bf16",
        optimizer=Optimizer(),
        megatron=MegatronSettings(
            use_distributed_optimizer=True,
            num_distributed_optimizer_instances=_instances(row["zero1"], mesh),
            overlap_grad_reduce=True, accumulate_allreduce_grads_in_fp32=False,
            ddp_bucket_size=BUCKET,
        ),
        activation_checkpointing=row["recompute"],
        pipeline=PipelineSettings(partition_method="blocks", schedule="megatron_1f1b"),
    )  # fmt: skip
    return simulate(plan, cluster_of(held["machine"], row["gpus"]), simulation=Simulation())


def _instances(zero1: int, mesh: Mesh) -> int:
    """Groups of ``zero1`` ranks that share the states; -1: one group of all."""
    return 1 if zero1 < 0 else mesh.dp // zero1


def cluster_of(machine: dict[str, Any], gpus: int) -> ClusterSpec:
    """Its nodes, of eight GPUs with four ports each."""
    node = catalog.node(machine["node"])
    node = replace(
        node, nic=catalog.nic(machine["nic"]), nic_count=machine["nic_count"],
        cpu=catalog.cpu(machine["cpu"]),
    )  # fmt: skip
    return nodes(node, -(-gpus // node.gpu_count))


@cache
def _internlm(config: str) -> Model:
    return build(json.loads(config), seq_len=SEQ_LEN, library="megatron_core", fused_loss=True)
