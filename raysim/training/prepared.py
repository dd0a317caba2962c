"""A plan on a cluster, ready to be played: prices, stages, communicators, programs of its ranks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.topology import Topology
from raysim.kernel.progress import Progress
from raysim.perf.compute import ComputeModel
from raysim.perf.cpu_rank import compute_model
from raysim.perf.nvme import nvme_volume
from raysim.training.communicators import Communicators
from raysim.training.compiler.compile import RankCompiler
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.program import Program
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import StageSpec, build_stages, pipeline_of

if TYPE_CHECKING:
    from raysim.training.noise import NarrowLinks

logger = logging.getLogger(__name__)


def prepare(
    plan: TrainingPlan, cluster: ClusterSpec, *, folded: bool, narrow: NarrowLinks = ()
) -> tuple[ComputeModel, tuple[StageSpec, ...], Communicators]:
    """Prices, stages and communicators of a plan on a cluster."""
    gpu = cluster.gpu
    assert gpu is not None, "a training job needs a cluster with GPUs"
    # A training job's nodes are alike: any one's processor is everyone's.
    cpu = next(group.node.cpu for group in cluster.groups if group.node.gpu is not None)
    costs = compute_model(
        gpu,
        plan.constants,
        cpu,
        cuda_graphs=plan.cuda_graphs,
        compiled=plan.torch_compile,
        expert_imbalance=plan.expert_imbalance,
        gpus=plan.mesh.world,
    )
    costs.allow_tf32, costs.cudnn_tf32 = plan.tf32.products, plan.tf32.convolutions
    if plan.engine == "megatron":
        if plan.megatron.gradient_accumulation_fusion:
            costs.gradient_buffer_bytes = plan.gradient_buffer_bytes
        costs.grouped_kernel = "streams"
    stages = build_stages(plan, costs)
    tied = tuple(sorted({stage.rank for stage in stages if stage.tied_bytes}))
    return (
        costs,
        stages,
        _communicators(plan.mesh, cluster, folded=folded, tied_stages=tied, narrow=narrow),
    )


@lru_cache(maxsize=8)
def _communicators(
    mesh: Mesh,
    cluster: ClusterSpec,
    *,
    folded: bool,
    tied_stages: tuple[int, ...],
    narrow: NarrowLinks,
) -> Communicators:
    """Groups and their traffic know no time: plans that share mesh and cluster share them."""
    topology = _topology(cluster, narrow)
    return Communicators(mesh, topology, folded=folded, tied_stages=tied_stages)


@lru_cache(maxsize=8)
def _topology(cluster: ClusterSpec, narrow: NarrowLinks) -> Topology:
    """The links of a cluster, some of them with less capacity."""
    topology = Topology.build(cluster)
    for node, nic, share in narrow:
        topology.narrow(node, nic, share)
    return topology


def compile_programs(
    plan: TrainingPlan,
    comms: Communicators,
    stages: Sequence[StageSpec],
    costs: ComputeModel,
    *,
    feed: Feed,
    steps: int,
    forward_only: bool = False,
    memory: bool = True,
    ranks: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> tuple[Program, ...]:
    """Programs of every simulated rank, or some: optimizer steps, or forward passes only."""
    node = comms.topology.specs[comms.placement[0][0]]
    programs = []
    ranks = comms.representatives() if ranks is None else ranks
    for number, rank in enumerate(ranks, 1):
        if progress is not None:
            progress.part(number, len(ranks))
        at = plan.mesh.coordinate(rank)
        compiler = RankCompiler(
            plan,
            at,
            [stage for stage in stages if stage.rank == at.pp],
            costs,
            cpu=node.cpu,
            ranks_per_node=comms.ranks_per_node,
            copy_bytes_per_s=comms.copy_bytes_per_s,
            volume=nvme_volume(node),
            feed=feed,
            forward_only=forward_only,
            memory=memory,
            sm_s=partial(comms.sm_s, rank=rank),
        )
        compiled = compiler.compile_evaluation if forward_only else compiler.compile
        programs.append(compiled(steps))
    operations = sum(len(program.ops) for program in programs)
    logger.info("compiled %d ranks, %d operations", len(programs), operations)
    return tuple(programs)


def enough(plan: TrainingPlan) -> int:
    """Micro-batches that show filling, a steady stretch and draining."""
    return pipeline_of(plan).enough(plan.gradient_accumulation_steps)


def shortened(plan: TrainingPlan, micro_batches: int) -> TrainingPlan:
    """The plan with fewer micro-batches, grouped as before; those left out put no gradient off."""
    pipeline, megatron = pipeline_of(plan), plan.megatron
    if micro_batches < plan.gradient_accumulation_steps:
        limit = megatron.wgrad_deferral_limit or plan.gradient_accumulation_steps
        megatron = replace(megatron, wgrad_deferral_limit=min(limit, pipeline.settling))
    return replace(
        plan,
        megatron=megatron,
        gradient_accumulation_steps=micro_batches,
        pipeline=replace(plan.pipeline, microbatch_group_size_per_vp_stage=pipeline.group),
    )


def filled(plan: TrainingPlan) -> TrainingPlan:
    """The plan with as many micro-batches as fill its pipeline."""
    return shortened(plan, pipeline_of(plan).filling(plan.gradient_accumulation_steps))
