"""Published runs and benchmarks, predicted: rows of ``validation/data/published``.

MosaicML's MPT runs use FSDP1 full shard, bf16 over fp32 shards and flash attention. Ten rows,
marked ``calibration``, fixed one constant per GPU and one for both; none of the others was looked
at for that.

BigScience's 52 B pipeline: early stages peak in backward, with S - r micro-batches of checkpoints
in flight; late ones in the optimizer step, at 20 bytes per parameter. Nothing was fitted on it; its
arguments and its optimizer's wrapper are those of its log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.specs import GpuSpec, NodeSpec
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.models.huggingface import build
from raysim.perf.compute import ComputeModel
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.memory.peaks import RankMemory, rank_memory
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs
from raysim.training.settings.deepspeed import Optimizer, PipelineSettings, ZeroConfig
from raysim.training.settings.fp8 import Fp8Settings
from raysim.training.settings.fsdp import FsdpSettings
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import build_stages
from raysim.training.tower import StepOutcome, simulate
from raysim.units import GIB, MIB, to_seconds
from raysim.validate.job import job_of
from raysim.validate.llm_foundry import mpt
from raysim.validate.points import OUT_OF_MEMORY, Point

PUBLISHED = Path("data/published")
"""Under the folder ``validation``."""
NODES = {"H100-SXM-80GB": "hgx-h100-8", "A100-SXM-80GB": "dgx-a100-80-8"}
COMPOSER = FsdpSettings(
    version=1, param_dtype="bf16", reduce_dtype="fp32", backward_prefetch="BACKWARD_POST",
    use_orig_params=True, sync_every_micro_batch=True,
)  # fmt: skip
"""llm-foundry's ``fsdp_config`` (``limit_all_gathers``, non-reentrant checkpoints) over Composer's
defaults of backward prefetch and original parameters. ``mixed_precision: DEFAULT``, which most rows
say, reduces in fp32 (``get_mixed_precision`` of ``composer/trainer/mosaic_fsdp_utils.py``),
``PURE`` in bf16; the two rows that say so are of May 2023 and torch 1.13. Composer syncs FSDP in
every micro-batch (``dist_strategy.py``: ``no_sync`` is DDP's alone)."""
PIPELINE_MODEL = {
    "model_type": "megatron_gpt", "hidden_size": 8192, "num_attention_heads": 32, "num_layers": 64,
    "max_position_embeddings": 1024, "padded_vocab_size": 50688,
}  # fmt: skip
"""As the run's log prints its arguments; its first stage has 917,757,952 parameters."""


def rows(validation: Path, name: str) -> list[dict[str, Any]]:
    """Of a published file."""
    found: list[dict[str, Any]] = json.loads((validation / PUBLISHED / name).read_text())["rows"]
    return found


def row_points(
    validation: Path, name: str, play: Callable[[dict[str, Any]], float]
) -> Iterator[Point]:
    """Every row of a file, predicted by ``play``; those left out with the reason in ``why``."""
    for row in rows(validation, name):
        measured: dict[str, Any] = {"unit": row["unit"], "measured": row["value"]}
        if row["use"] == "left_out":
            measured |= {"role": "validation", "left_out": row["why"]}
        else:
            measured |= {"role": row["use"], "predicted": play(row)}
        family = f"{name.removesuffix('.json')}/{row['family']}"
        yield Point(family=family, name=row["id"], **measured)


def left_points(left_out: Iterable[dict[str, Any]], family: str) -> Iterator[Point]:
    """Rows that are not compared, each with the reason of its group (``rows``, ``why``)."""
    for left in left_out:
        for name in left["rows"]:
            yield Point(family=family, name=name, role="validation", left_out=left["why"])


def nodes(node: NodeSpec, count: int) -> ClusterSpec:
    """So many of them on a rail-optimised fat tree."""
    group = NodeGroup(name="gpu", node=node, count=count)
    return ClusterSpec(groups=(group,), fabric=FabricSpec(kind="rail_fat_tree"))


def rate_point(
    outcome: StepOutcome, family: str, name: str, measured: float, counted: float, *,
    role: Any = "validation", unit: str = "tokens/s/GPU", sweeps: tuple[str, ...] = (),
) -> Point:  # fmt: skip
    """A rate beside the predicted one: what is ``counted`` of a step, per second."""
    return Point(
        family=family, name=name, role=role, unit=unit, measured=measured,
        predicted=counted / to_seconds(outcome.steady_step_ns),
        job=job_of(outcome, sweeps=sweeps, counted=counted),
    )  # fmt: skip


def reserved_point(outcome: StepOutcome, family: str, row: dict[str, Any]) -> Point:
    """GiB that a run reserved at most, on its fullest GPU."""
    return Point(
        family=f"runs_memory/{family}", name=row["id"], role="validation", unit="GiB",
        measured=row["reserved_gib"], predicted=outcome.fullest.reserved_bytes / GIB,
        job=job_of(outcome),
    )  # fmt: skip


def pipeline(stages: int, chunks: int = 1, *, ends: bool = False, **more: Any) -> PipelineSettings:
    """A pipeline of blocks whose ranks send whole tensors; ``chunks``: stages of a rank.

    ``ends``: embedding and head count as a block each where blocks are dealt out.
    """
    return PipelineSettings(
        stages=stages, partition_method="blocks", pipe_partitioned=False, grad_partitioned=False,
        schedule="interleaved" if chunks > 1 else "megatron_1f1b",
        virtual_stages=chunks if chunks > 1 else None,
        account_for_embedding_in_pipeline_split=ends, account_for_loss_in_pipeline_split=ends,
        **more,
    )  # fmt: skip


def ran_point(outcome: StepOutcome, family: str, name: str) -> Point:
    """That a run did not end out of memory, beside its predicted peak over the GPU's memory."""
    return memory_point(family, name, outcome.fullest.peak_bytes, outcome.costs.gpu)


def memory_point(
    family: str, name: str, peak_bytes: float, gpu: GpuSpec, *, ran_out: bool = False
) -> Point:
    """Whether a run ended out of memory, beside a predicted peak over the GPU's memory."""
    return Point(
        family=f"out_of_memory/{family}", name=name, role="validation", unit=OUT_OF_MEMORY,
        measured=float(ran_out), predicted=peak_bytes / gpu.memory_bytes,
    )  # fmt: skip


def mpt_tokens_per_s(row: dict[str, Any]) -> float:
    """Tokens per second and GPU of one MPT run."""
    return _per_gpu(row, mpt_outcome(row))


def _per_gpu(row: dict[str, Any], outcome: StepOutcome) -> float:
    return _tokens_per_gpu(row, outcome) / to_seconds(outcome.steady_step_ns)


def _tokens_per_gpu(row: dict[str, Any], outcome: StepOutcome) -> float:
    """Of one step."""
    samples = outcome.plan.micro_batch * outcome.micro_batches * outcome.plan.mesh.dp
    return float(samples * row["seq_len"] / row["gpus"])


def mpt_outcome(row: dict[str, Any], fp8: Fp8Settings | None = None) -> StepOutcome:
    """One MPT run, simulated; ``fp8``: of Transformer Engine's linears, else in bf16.

    Its optimizer, DecoupledAdamW, loops over FSDP's flat shards.
    """
    gpus, micro = row["gpus"], row["micro_batch"]
    pure = row.get("mixed_precision") == "PURE"
    fsdp = replace(
        COMPOSER, reduce_dtype="bf16" if pure else "fp32",
        sharding_strategy=row.get("sharding_strategy", "FULL_SHARD"),
    )  # fmt: skip
    plan = TrainingPlan(
        model=mpt(
            row["hidden"], row["heads"], row["layers"], seq_len=row["seq_len"], vocab=row["vocab"]
        ),
        mesh=Mesh(dp=gpus),
        engine="fsdp",
        micro_batch=micro,
        gradient_accumulation_steps=max(1, row["global_batch"] // (micro * gpus)),
        precision="fp32",
        optimizer=Optimizer(fused=False, foreach=False),
        fsdp=fsdp,
        fp8=fp8,
        activation_checkpointing="full" if row["recompute"] == "full" else "none",
        reentrant_checkpoints=pure or None,
    )
    where = nodes(catalog.node(NODES[row["gpu"]]), max(1, gpus // 8))
    return simulate(plan, where, simulation=Simulation())


def mpt_points(validation: Path) -> Iterator[Point]:
    """Throughput of 68 runs on A100 and H100, and that they ran."""
    for row in rows(validation, "llmfoundry_mpt.json"):
        outcome = mpt_outcome(row)
        sweep = f"{row['gpu']}: h{row['hidden']} L{row['layers']}"
        each = _tokens_per_gpu(row, outcome)
        yield Point(
            family=f"mpt/{row['gpu'].partition('-')[0]}", name=row["id"], role=row["use"],
            unit="tokens/s/GPU", measured=row["tokens_per_s_per_gpu"],
            predicted=_per_gpu(row, outcome), job=job_of(outcome, sweeps=(sweep,), counted=each),
        )  # fmt: skip
        yield ran_point(outcome, "mpt", row["id"])


def pipeline_memory() -> list[RankMemory]:
    """Of the first GPU of each of the 16 stages of the 52 B run."""
    plan = TrainingPlan(
        model=build(PIPELINE_MODEL, seq_len=1024, attention="eager"),
        mesh=Mesh(pp=16, tp=4),
        engine="deepspeed",
        micro_batch=4,
        gradient_accumulation_steps=32,
        precision="fp16",
        # apex's FusedAdam, which DeepSpeed 0.4 did not know: "Creating fp16 unfused optimizer".
        optimizer=Optimizer(type="FusedAdam", fused=False),
        zero=ZeroConfig(stage=0),
        pipeline=PipelineSettings(
            stages=16,
            partition_method="type:ParallelTransformerLayer",
            activation_checkpoint_interval=1,
        ),
    )
    where = nodes(catalog.node("dgx-v100-32-8"), 8)
    gpu = catalog.gpu("V100-SXM2-32GB")
    costs = ComputeModel(gpu)
    stages = build_stages(plan, costs)
    comms = Communicators(
        plan.mesh, Topology.build(where), folded=True,
        tied_stages=[s.index for s in stages if s.tied_bytes],
    )  # fmt: skip
    programs = compile_programs(plan, comms, stages, costs, feed=Feed(), steps=1)
    return [rank_memory(program, None, gpu, ()) for program in programs]


def memory_points(validation: Path) -> Iterator[Point]:
    """Peak allocated and reserved memory by stage."""
    memory = pipeline_memory()
    for row in rows(validation, "bigscience_52b_memory.json"):
        found = memory[row["stage"]]
        sizes = {"allocated": found.allocated_bytes, "reserved": found.reserved_bytes}
        for name, size in sizes.items():
            yield Point(
                family=f"memory_52b/{name}", name=f"stage {row['stage']:02}", role="validation",
                unit="MiB", measured=row[f"max_{name}_mib"], predicted=size / MIB,
            )  # fmt: skip
