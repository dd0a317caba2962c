"""Compile a plan for a cluster and play it: the training tower's one door."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from heapq import heappop, heappush

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.network import FlowNetwork, Network
from raysim.hardware.topology import Topology
from raysim.kernel.progress import Progress
from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.compute import ComputeModel
from raysim.perf.cpu_rank import compute_model
from raysim.perf.nvme import nvme_volume
from raysim.training.breakdown import Breakdown, range_breakdown, step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.compiler.compile import RankCompiler
from raysim.training.compiler.feed import Feed
from raysim.training.compiler.kept_inputs import offloaded_bytes
from raysim.training.engines.context import OVERFLOW_CHECK
from raysim.training.executor import Executor, Timeline
from raysim.training.layers.sections import weights_of
from raysim.training.memory.bounds import at_most
from raysim.training.memory.host import HostMemory, host_memory
from raysim.training.memory.peaks import RankMemory, rank_memory
from raysim.training.noise import ALIKE, NarrowLinks, Noise, disturb
from raysim.training.plan import TrainingPlan
from raysim.training.program import Program
from raysim.training.settings.parallel import Mesh
from raysim.training.stages import StageSpec, build_stages, check_pipeline, pipeline_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """What playing some optimizer steps showed."""

    plan: TrainingPlan
    """As simulated: with fewer micro-batches than asked when the rest was extrapolated."""
    micro_batches: int
    """Per optimizer step, as asked."""
    cluster: ClusterSpec
    costs: ComputeModel
    comms: Communicators
    network: Network
    stages: tuple[StageSpec, ...]
    timelines: tuple[Timeline, ...]
    """One per simulated rank."""
    step_ns: tuple[int, ...]
    """Duration of each simulated step, over all ranks."""
    memory: tuple[RankMemory, ...]
    simulation: Simulation

    @property
    def extrapolated(self) -> int:
        """Micro-batches per step that were not simulated but repeat the steady period."""
        return self.micro_batches - self.plan.gradient_accumulation_steps

    @property
    def steady_step_ns(self) -> int:
        """The last simulated step, and the steady period for every micro-batch left out."""
        return self.step_ns[-1] + self._left_out_ns

    @property
    def _left_out_ns(self) -> int:
        if not self.extrapolated:
            return 0
        return round(self._repeats() * self._steady_ns(self.slowest))

    def _period(self) -> tuple[int, int]:
        """Which backward passes of the last step bound whole periods of the steady stretch.

        Counted over all steps; every rank has as many.
        """
        return steady_passes(self.plan, self.timelines[0].program)

    def _repeats(self) -> float:
        """How often the steady stretch stands for the micro-batches left out."""
        first, last = self._period()
        return self.extrapolated * pipeline_of(self.plan).passes / (last - first)

    def _steady_ns(self, line: Timeline) -> int:
        """Nanoseconds of the steady stretch."""
        first, last = self._period()
        return line.backward_end_ns(last) - line.backward_end_ns(first)

    @cached_property
    def slowest(self) -> Timeline:
        """The rank whose compute stream idles least in the last step: the others wait for it."""
        if len(self.timelines) == 1:
            return self.timelines[0]
        last = len(self.step_ns) - 1
        return max(self.timelines, key=lambda line: _kernel_ns(line, last))

    def weighted_ops(self, line: Timeline) -> Iterator[tuple[range, float]]:
        """Operations of a full step of one rank: ranges of indices, and how often each counts."""
        ends = line.program.step_ends
        yield range(ends[-2] if len(ends) > 1 else 0, ends[-1]), 1.0
        if self.extrapolated:
            first, last = self._period()
            bounds = line.program.backward_ends
            steady = range(bounds[first - 1], bounds[last - 1])
            yield steady, self._repeats()

    @cached_property
    def breakdown(self) -> Breakdown:
        """Where a step's time went on the slowest rank."""
        line = self.slowest
        total = step_breakdown(line, len(self.step_ns) - 1, self.step_ns[-1])
        for ops, times in list(self.weighted_ops(line))[1:]:
            first, last = self._period()
            window = line.backward_end_ns(first), line.backward_end_ns(last)
            total = total.plus(range_breakdown(line, ops.start, ops.stop, *window), times)
        return total

    def update_ns(self) -> int:
        """What follows the overflow check in a step of the slowest rank; 0 where there is none."""
        line = self.slowest
        ends = line.program.step_ends
        last = range(ends[-2] if len(ends) > 1 else 0, ends[-1])
        checks = [i for i in last if line.program.ops[i].name == OVERFLOW_CHECK]
        if not checks:
            return 0
        return line.step_window(len(ends) - 1)[1] - line.end_ns[checks[-1]]

    @property
    def fullest(self) -> RankMemory:
        """The rank with the highest peak."""
        return max(self.memory, key=lambda m: m.peak_bytes)


def steps_to_steady(plan: TrainingPlan) -> int:
    """The first steady step: pipelines drain after each, others run on into the next."""
    return 1 if plan.mesh.pp > 1 else 2


def steady_passes(plan: TrainingPlan, program: Program) -> tuple[int, int]:
    """As ``StepOutcome`` has it: which backward passes bound the steady stretch."""
    begin = program.step_ends[-2] if len(program.step_ends) > 1 else 0
    before = bisect_right(program.backward_ends, begin)
    first, last = pipeline_of(plan).steady(plan.gradient_accumulation_steps)
    return before + first, before + last


def _kernel_ns(line: Timeline, step: int) -> int:
    parts = step_breakdown(line, step).parts_ns
    return parts["compute"] + parts["recompute"]


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


@collector_at_ease()
def simulate(
    plan: TrainingPlan,
    cluster: ClusterSpec,
    *,
    simulation: Simulation,
    feed: Feed | None = None,
    steps: int | None = None,
    exact: bool = False,
    forward_only: bool = False,
    memory: bool = True,
    noise: Noise = ALIKE,
    progress: Progress | None = None,
) -> StepOutcome:
    """Play ``steps`` optimizer steps of ``plan`` on ``cluster``.

    Parameters
    ----------
    plan, cluster
        What runs, and where.
    simulation
        Fresh clock to play on.
    feed
        What the data of a micro-batch costs; None: nothing.
    steps
        Optimizer steps to play; the last is the steady state, others warm up with one micro-batch.
        None: two, or one of a pipeline, which drains between steps.
    exact
        Simulate every rank instead of one per pipeline stage.
    forward_only
        Evaluation: the steps are forward passes of one micro-batch.
    memory
        Whether to account for memory; without, only time is right.
    noise
        How ranks differ.
    progress
        Where to say how far it is.

    Raises
    ------
    ScenarioError
        The plan does not fit the cluster's GPUs, or the model cannot be cut as asked.
    """
    micro_batches = plan.gradient_accumulation_steps
    if not forward_only:
        check_pipeline(plan)
        plan = shortened(plan, min(micro_batches, enough(plan)))
    costs, stages, comms = prepare(plan, cluster, folded=not exact, narrow=noise.links)
    steps = steps or steps_to_steady(plan)
    programs = compile_programs(
        plan, comms, stages, costs, feed=feed or Feed(), steps=steps,
        forward_only=forward_only, memory=memory, progress=progress,
    )  # fmt: skip
    disturb(programs, comms, noise, simulation.rng)
    network = FlowNetwork(simulation, comms.topology)
    timelines = _play(programs, Executor(simulation, network, comms), progress)
    fills = memory and not forward_only
    replayed = _filling(plan, programs, comms, stages, costs) if fills else programs
    return StepOutcome(
        plan=plan,
        micro_batches=micro_batches,
        cluster=cluster,
        costs=costs,
        comms=comms,
        network=network,
        stages=stages,
        timelines=tuple(timelines),
        step_ns=_step_durations(timelines, steps),
        memory=_memories(plan, costs, comms, timelines, replayed if memory else (), progress),
        simulation=simulation,
    )


def _play(
    programs: Sequence[Program], executor: Executor, progress: Progress | None
) -> list[Timeline]:
    if progress is not None:
        progress.phase("playing", 0.3)
        progress.playing(executor.where)
    timelines = executor.play(programs)
    if progress is not None:
        progress.phase("memory of rank", 0.45)
    return timelines


def _memories(
    plan: TrainingPlan,
    costs: ComputeModel,
    comms: Communicators,
    timelines: Sequence[Timeline],
    programs: Sequence[Program],
    progress: Progress | None,
) -> tuple[RankMemory, ...]:
    """Of every rank, replayed from its program."""
    found = []
    for number, (line, program) in enumerate(zip(timelines, programs, strict=False), 1):
        if progress is not None:
            progress.part(number, len(programs))
        found.append(_memory(plan, costs, comms, line.program, line, replayed=program))
    return tuple(found)


def _filled(plan: TrainingPlan) -> TrainingPlan:
    """The plan with as many micro-batches as fill its pipeline."""
    return shortened(plan, pipeline_of(plan).filling(plan.gradient_accumulation_steps))


def _filling(
    plan: TrainingPlan,
    programs: tuple[Program, ...],
    comms: Communicators,
    stages: Sequence[StageSpec],
    costs: ComputeModel,
) -> tuple[Program, ...]:
    """Programs with as many micro-batches as fill the pipeline: memory peaks no later."""
    few = _filled(plan)
    if plan.mesh.pp == 1 or few == plan:
        return programs
    return compile_programs(few, comms, stages, costs, feed=Feed(), steps=1)


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
        costs.fp32_gradients = plan.megatron.gradient_accumulation_fusion
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


def host_need(plan: TrainingPlan, stages: Sequence[StageSpec], comms: Communicators) -> HostMemory:
    """Main memory of the fullest node: the one whose ranks hold most parameters."""
    trained: dict[int, list[int]] = {}
    stored: dict[int, dict[str, int]] = {}
    width = COMPUTE_DTYPE_BYTES[plan.precision]
    for stage in stages:
        sizes = (g.numel for u in stage.units for g in u.gradients)
        trained.setdefault(stage.rank, []).extend(sizes)
        weights = weights_of(stage.units).items()
        stored.setdefault(stage.rank, {}).update((n, g.packed(width).numel) for n, g in weights)
    rank = max(trained, key=lambda rank: sum(trained[rank]))
    fullest, held = trained[rank], sum(stored[rank].values())
    node = comms.topology.specs[comms.placement[0][0]]
    found = host_memory(plan, sum(fullest), held, node, comms.ranks_per_node, fullest)
    return found.holding("activation", offloaded_bytes(plan, stages) * comms.ranks_per_node)


@collector_at_ease()
def memory_need(
    plan: TrainingPlan,
    cluster: ClusterSpec,
    limit_bytes: int | None = None,
    *,
    release: bool = True,
) -> tuple[int, HostMemory]:
    """Peak bytes of the fullest GPU and of the fullest host, without playing.

    Peaks do not depend on time, and a few micro-batches show them: as many as fill the pipeline,
    where activations accumulate. With ``limit_bytes`` the peak is at most that if it fits (given
    ``release``, that cached memory is given back); of what cannot fit it is a lower bound.

    Ranks are looked at from the one on that could take most, until the others cannot take more.
    """
    check_pipeline(plan)
    plan = _filled(plan)
    costs, stages, comms = prepare(plan, cluster, folded=True)
    most = 0
    for bound, program in _fullest_first(plan, comms, stages, costs):
        if bound < most:
            break
        found = _memory(
            plan, costs, comms, program, None, limit_bytes, release=release, explain=False
        )
        most = max(most, found.peak_bytes)
    return most, host_need(plan, stages, comms)


def _fullest_first(
    plan: TrainingPlan, comms: Communicators, stages: Sequence[StageSpec], costs: ComputeModel
) -> Iterator[tuple[int, Program]]:
    """Programs of one step and what they take at most (``at_most``), the largest first.

    In 1F1B a stage has fewer micro-batches under way than the one before it. Where their layers are
    alike it takes no more, and is compiled only when that one has been looked at.
    """
    ranks, plain = comms.representatives(), pipeline_of(plan).plain
    follows = [
        plain and 1 < number < len(ranks) - 1 and stages[number].like(stages[number - 1])
        for number in range(len(ranks))
    ]
    known: list[tuple[int, int, Program]] = []

    def enter(number: int) -> None:
        some = [ranks[number]]
        (program,) = compile_programs(plan, comms, stages, costs, feed=Feed(), steps=1, ranks=some)
        slack_frac = plan.constants.allocator_slack_frac
        bound = at_most(program, costs.gpu, slack_frac, plain=plain)
        heappush(known, (-bound, number, program))

    for number, later in enumerate(follows):
        if not later:
            enter(number)
    while known:
        bound, number, program = heappop(known)
        yield -bound, program
        if number + 1 < len(ranks) and follows[number + 1]:
            enter(number + 1)


def _memory(
    plan: TrainingPlan,
    costs: ComputeModel,
    comms: Communicators,
    program: Program,
    timeline: Timeline | None,
    limit_bytes: int | None = None,
    *,
    replayed: Program | None = None,
    release: bool = True,
    explain: bool = True,
) -> RankMemory:
    """Of one rank; without times where there is no timeline."""
    slack_frac = plan.constants.allocator_slack_frac
    track = _track(comms, program.rank)
    return rank_memory(
        program, timeline, costs.gpu, track, replayed=replayed,
        config=plan.allocator, slack_frac=slack_frac, release=release,
        limit_bytes=limit_bytes, quick=limit_bytes is not None, explain=explain,
    )  # fmt: skip


def _track(comms: Communicators, rank: int) -> tuple[str, str]:
    """Where a rank sits, as records name it."""
    node, local = comms.placement[rank]
    return f"node-{node}", f"gpu-{local}"


def _step_durations(timelines: Sequence[Timeline], steps: int) -> tuple[int, ...]:
    ends = [max(line.step_window(k)[1] for line in timelines) for k in range(steps)]
    return tuple(end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True))
