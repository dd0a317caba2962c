"""IBM's fms-fsdp benchmarks of Llama 2, predicted: FSDP1 on 128 A100 and 96 H100.

``validation/data/published/fms_fsdp.json``, from README.md of its repository, which also says what
is assumed: batches are small and networks narrow, so that what is hidden decides. No row fixed a
constant.
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
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.job import OLD_SDPA
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, left_points, nodes, ran_point, rate_point

FILE = "fms_fsdp.json"
LLAMA_2 = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32000,
    "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip


def fms_points(validation: Path) -> Iterator[Point]:
    """Tokens per second and GPU of every row on both machines, and the rows left out."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in document["rows"]:
        for machine, measured in row["tokens_per_s_per_gpu"].items():
            outcome = play(document, row, machine)
            each = row["micro_batch"] * document["seq_len"]
            how = "compiled" if row["compile"] else row["sharding"]
            name = f"fms-{row['model']}-{how}-mbs{row['micro_batch']}-{machine}"
            yield rate_point(outcome, "runs/fms_fsdp", name, measured, each)
            yield ran_point(outcome, "fms_fsdp", name)
    yield from left_points(document["left_out"], "runs")


def play(document: dict[str, Any], row: dict[str, Any], machine: str) -> StepOutcome:
    """Simulate one row on one of the two machines."""
    where = cluster_of(document["machines"][machine])
    hybrid = row["sharding"] == "hsdp"
    plan = TrainingPlan(
        model=_model(json.dumps(document["models"][row["model"]]), document["seq_len"]),
        mesh=Mesh(dp=where.num_gpus),
        engine="fsdp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=1,
        precision="fp32",
        optimizer=Optimizer(fused=False),
        gradient_clipping=1.0,
        fsdp=FsdpSettings(
            version=1,
            sharding_strategy="HYBRID_SHARD" if hybrid else "FULL_SHARD",
            replicas=len(where.gpu_nodes) if hybrid else 1,
            param_dtype="bf16", reduce_dtype="bf16", use_orig_params=row["compile"],
        ),
        activation_checkpointing=row["recompute"],
        torch_compile=row["compile"],
    )  # fmt: skip
    return simulate(plan, where, simulation=Simulation())


def cluster_of(machine: dict[str, Any]) -> ClusterSpec:
    """Its nodes; ``nic_gbit_s`` where its ports are others than the catalog's."""
    node = catalog.node(machine["node"])
    if "nic_gbit_s" in machine:
        speed = machine["nic_gbit_s"]
        nic = replace(node.nic, name=f"infiniband-{speed}", bytes_per_s=speed / 8 * 1e9)
        node = replace(node, nic=nic)
    return nodes(node, machine["count"])


@cache
def _model(shape: str, seq_len: int) -> Model:
    return build({**LLAMA_2, **json.loads(shape)}, seq_len=seq_len, attention=OLD_SDPA)
