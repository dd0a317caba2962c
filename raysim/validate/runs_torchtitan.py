"""torchtitan's own benchmarks of Llama 2, 3 and 3.1, predicted: tokens per second, reserved memory.

``validation/data/published/torchtitan.json``: FSDP2 on 8 to 512 H100 and on 64 A100, with selective
recomputation, ``torch.compile``, (asynchronous) tensor parallelism, float8, context parallelism and
pipelines.

Simplified: the final norm and, in December 2024, the loss count as compiled though only blocks
were; data loading costs nothing; embedding and head count as a block each where a pipeline is cut.
Peaks of Meta's H100 are the middle of what its operator says. Merging what a ring's pieces give is
not priced (``_SDPAMerger``: 3 % of a step of 131,072 tokens over four ranks, by its bytes).
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
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.job import OLD_SDPA
from raysim.validate.points import Point
from raysim.validate.published import (
    PUBLISHED,
    memory_point,
    nodes,
    pipeline,
    rate_point,
    reserved_point,
)

FILE = "torchtitan.json"


def torchtitan_points(validation: Path) -> Iterator[Point]:
    """Tokens per second and GPU of each row; GiB reserved at most where the row says so."""
    document = json.loads((validation / PUBLISHED / FILE).read_text(encoding="utf-8"))
    for row in document["rows"]:
        yield from points_of(document, row)


def points_of(document: dict[str, Any], row: dict[str, Any]) -> Iterator[Point]:
    """Of one row: whether it ran, and what it printed."""
    outcome = play(document, row)
    family = family_of(row)
    mesh = outcome.plan.mesh
    if "tokens_per_s_per_gpu" in row:
        samples = row["micro_batch"] * outcome.micro_batches * mesh.dp
        tokens = samples * seq_len(document, row) / mesh.world
        settings = row["settings"]
        sweep = f"torchtitan: {row['model']}, {mesh.world} GPUs, {settings}"
        yield rate_point(
            outcome, f"runs/{family}", row["id"], row["tokens_per_s_per_gpu"], tokens,
            role=row["use"], sweeps=(sweep,),
        )  # fmt: skip
    gpu, peak = outcome.costs.gpu, outcome.fullest.peak_bytes
    yield memory_point(family, row["id"], peak, gpu, ran_out=row.get("ran_out", False))
    if "reserved_gib" in row:
        yield reserved_point(outcome, family, row)


def family_of(row: dict[str, Any]) -> str:
    """fp8 and A100 apart."""
    if "fp8" in row:
        return "fp8_torchtitan"
    return "torchtitan" if row["machine"] == "h100" else "torchtitan_a100"


def seq_len(document: dict[str, Any], row: dict[str, Any]) -> int:
    """Tokens of a sample."""
    return int(row.get("seq_len", document["seq_len"]))


def play(document: dict[str, Any], row: dict[str, Any]) -> StepOutcome:
    """Simulate one row."""
    mesh = Mesh(dp=row["dp"], tp=row["tp"], cp=row.get("cp", 1), pp=row.get("pp", 1))
    recompute, layers = row["recompute"], document["models"][row["model"]]["num_hidden_layers"]
    half = recompute == "every_second"
    plan = TrainingPlan(
        model=_model(json.dumps(document["models"][row["model"]]), seq_len(document, row)),
        mesh=mesh,
        engine="fsdp",
        micro_batch=row["micro_batch"],
        gradient_accumulation_steps=row.get("micro_batches", 1),
        precision="fp32",
        optimizer=Optimizer(fused=row["settings"] == "202506"),
        fsdp=FsdpSettings(
            param_dtype="bf16", reduce_dtype="fp32", keeps_last=mesh.pp == 1,
            reshard_after_forward=mesh.pp == 1,
            sequence_parallel=mesh.tp > 1, async_tensor_parallel=row["async_tp"],
        ),
        fp8=_fp8(row.get("fp8")),
        # torch's 1F1B and interleaved schedules, whose sends do not block
        pipeline=pipeline(mesh.pp, row.get("virtual_stages", 1), ends=mesh.pp > 1),
        ring_attention=mesh.cp > 1,
        activation_checkpointing="full" if half else recompute,
        recompute_layers=layers // 2 if half else None,
        torch_compile=row["compile"],
    )  # fmt: skip
    node = catalog.node(document["machines"][row["machine"]])
    where = nodes(node, -(-mesh.world // node.gpu_count))
    return simulate(plan, where, simulation=Simulation())


def _fp8(recipe: Any) -> Fp8Settings | None:
    if recipe is None:
        return None
    whole = recipe == "tensorwise"  # whose scale is known before the gather
    return Fp8Settings(
        library="torchao", recipe=recipe, float8_all_gather=whole, precomputes_scales=whole
    )


@cache
def _model(config: str, seq_len: int) -> Model:
    return build(json.loads(config), seq_len=seq_len, attention=OLD_SDPA, library="torchtitan")
