"""torchtitan's own benchmarks of Llama 3.1 in bf16, predicted: tokens per second, reserved memory.

``validation/data/published/torchtitan.json``: FSDP2 on 8 to 256 H100, with selective recomputation
by operator, ``torch.compile``, tensor parallelism and its asynchronous form.

Simplified: the final norm and, in December 2024, the loss count as compiled though only blocks
were; data loading costs nothing. Peaks of Meta's H100 are the middle of what its operator says.
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
from raysim.training.plan import TrainingPlan
from raysim.training.settings.deepspeed import Optimizer
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.units import GIB
from raysim.validate.job import OLD_SDPA, job_of
from raysim.validate.points import Point
from raysim.validate.published import PUBLISHED, nodes, ran_point, rate_point

FILE = "torchtitan.json"


def torchtitan_points(validation: Path) -> Iterator[Point]:
    """Tokens per second and GPU of each row; GiB reserved at most where the row says so."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in document["rows"]:
        outcome = play(document, row)
        each = row["micro_batch"] * document["seq_len"] / row["tp"]
        sweep = f"torchtitan: {row['model']}, {row['dp'] * row['tp']} GPUs, {row['settings']}"
        yield rate_point(
            outcome,
            "runs/torchtitan",
            row["id"],
            row["tokens_per_s_per_gpu"],
            each,
            role=row["use"],
            sweeps=(sweep,),
        )
        yield ran_point(outcome, "torchtitan", row["id"])
        if "reserved_gib" in row:
            yield Point(
                family="runs_memory/torchtitan", name=row["id"], role="validation", unit="GiB",
                measured=row["reserved_gib"], predicted=outcome.fullest.reserved_bytes / GIB,
                job=job_of(outcome),
            )  # fmt: skip


def play(document: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """Simulate one row."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"])
    plan = TrainingPlan(
        model=_model(json.dumps(document["models"][row["model"]]), document["seq_len"]),
        mesh=mesh,
        engine="fsdp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=1,
        precision="fp32",
        optimizer=Optimizer(fused=row["settings"] == "202506"),
        fsdp=FsdpSettings(
            param_dtype="bf16", reduce_dtype="fp32", keeps_last=True, sequence_parallel=True,
            async_tensor_parallel=row["async_tp"],
        ),
        activation_checkpointing=row["recompute"],
        torch_compile=row["compile"],
    )  # fmt: skip
    node = catalog.node(document["machine"])
    where = nodes(node, -(-mesh.world // node.gpu_count))
    return simulate(plan, where, simulation=Simulation())


@cache
def _model(config: str, seq_len: int) -> Model:
    return build(json.loads(config), seq_len=seq_len, attention=OLD_SDPA, library="torchtitan")
