"""Compile a plan for a cluster and play it: the training tower's one door."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.network import FlowNetwork, Network
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.perf.compute import ComputeModel
from raysim.training.breakdown import Breakdown, step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.compile import Feed, RankCompiler, StageSpec, build_stages
from raysim.training.executor import Executor, Timeline
from raysim.training.memory import RankMemory, rank_memory
from raysim.training.plan import TrainingPlan
from raysim.training.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What playing some optimizer steps showed."""

    plan: TrainingPlan
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
    def steady_step_ns(self) -> int:
        """The last simulated step: the first ones fill pipelines and prefetch queues."""
        return self.step_ns[-1]

    @property
    def slowest(self) -> Timeline:
        """The rank whose compute stream idles least in the last step: the others wait for it."""
        last = len(self.step_ns) - 1
        return max(self.timelines, key=lambda line: _kernel_ns(line, last))

    def breakdown(self) -> Breakdown:
        """Where the last step's time went on the slowest rank."""
        return step_breakdown(self.slowest, len(self.step_ns) - 1)

    @property
    def fullest(self) -> RankMemory:
        """The rank with the highest peak."""
        return max(self.memory, key=lambda m: m.peak_bytes)


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
) -> tuple[Program, ...]:
    """Programs of every simulated rank: optimizer steps, or forward passes only."""
    node = comms.topology.specs[comms.placement[0][0]]
    programs = []
    for rank in comms.representatives():
        at = plan.mesh.coordinate(rank)
        compiler = RankCompiler(
            plan,
            at,
            stages[at.pp],
            costs,
            cpu=node.cpu,
            ranks_per_node=comms.ranks_per_node,
            feed=feed,
            forward_only=forward_only,
        )
        compiled = compiler.compile_evaluation if forward_only else compiler.compile
        programs.append(compiled(steps))
    return tuple(programs)


def simulate(
    plan: TrainingPlan,
    cluster: ClusterSpec,
    *,
    simulation: Simulation,
    feed: Feed | None = None,
    steps: int = 2,
    exact: bool = False,
    forward_only: bool = False,
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
        Optimizer steps to play; the last counts as the steady state.
    exact
        Simulate every rank instead of one per pipeline stage.
    forward_only
        Evaluation: the steps are forward passes of one micro-batch.

    Raises
    ------
    ScenarioError
        The plan does not fit the cluster's GPUs, or the model cannot be cut as asked.
    """
    gpu = cluster.gpu
    assert gpu is not None, "a training job needs a cluster with GPUs"
    costs = ComputeModel(gpu)
    topology = Topology.build(cluster)
    stages = build_stages(plan, costs)
    tied = [stage.index for stage in stages if stage.tied_bytes]
    comms = Communicators(plan.mesh, topology, folded=not exact, tied_stages=tied)
    programs = compile_programs(
        plan, comms, stages, costs, feed=feed or Feed(), steps=steps, forward_only=forward_only
    )
    network = FlowNetwork(simulation, topology)
    timelines = Executor(simulation, network, comms).play(programs)
    memory = tuple(
        rank_memory(line.program, line, gpu, _track(comms, line.program.rank)) for line in timelines
    )
    return StepOutcome(
        plan=plan,
        cluster=cluster,
        costs=costs,
        comms=comms,
        network=network,
        stages=stages,
        timelines=tuple(timelines),
        step_ns=_step_durations(timelines, steps),
        memory=memory,
        simulation=simulation,
    )


def peak_memory(plan: TrainingPlan, cluster: ClusterSpec) -> tuple[RankMemory, ...]:
    """Peak memory of every simulated rank without playing: it does not depend on time.

    A few micro-batches show it: one more than pipeline stages, where activations accumulate.
    """
    gpu = cluster.gpu
    assert gpu is not None, "a training job needs a cluster with GPUs"
    few = min(plan.gradient_accumulation_steps, plan.mesh.pp + 1)
    plan = replace(plan, gradient_accumulation_steps=few)
    costs = ComputeModel(gpu)
    stages = build_stages(plan, costs)
    comms = Communicators(plan.mesh, Topology.build(cluster), folded=True)
    programs = compile_programs(plan, comms, stages, costs, feed=Feed(), steps=1)
    return tuple(rank_memory(p, None, gpu, _track(comms, p.rank)) for p in programs)


def _track(comms: Communicators, rank: int) -> tuple[str, str]:
    """Where a rank sits, as records name it."""
    node, local = comms.placement[rank]
    return f"node-{node}", f"gpu-{local}"


def _step_durations(timelines: Sequence[Timeline], steps: int) -> tuple[int, ...]:
    ends = [max(line.step_window(k)[1] for line in timelines) for k in range(steps)]
    return tuple(end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True))
