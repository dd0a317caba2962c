"""Compile a plan for a cluster and play it: the training tower's one door."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.network import FlowNetwork, Network
from raysim.kernel.progress import Progress
from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.perf.compute import ComputeModel
from raysim.training.breakdown import Breakdown, range_breakdown, step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.engines.context import OVERFLOW_CHECK
from raysim.training.executor import Executor, Timeline
from raysim.training.memory.need import memory_of
from raysim.training.memory.peaks import RankMemory
from raysim.training.noise import ALIKE, Noise, disturb
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs, enough, filled, prepare, shortened
from raysim.training.program import Program
from raysim.training.stages import StageSpec, check_pipeline, pipeline_of


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
    return 1 if plan.mesh.pp > 1 and not plan.pipeline.homes else 2


def steady_passes(plan: TrainingPlan, program: Program) -> tuple[int, int]:
    """As ``StepOutcome`` has it: which backward passes bound the steady stretch."""
    begin = program.step_ends[-2] if len(program.step_ends) > 1 else 0
    before = bisect_right(program.backward_ends, begin)
    first, last = pipeline_of(plan).steady(plan.gradient_accumulation_steps)
    return before + first, before + last


def _kernel_ns(line: Timeline, step: int) -> int:
    parts = step_breakdown(line, step).parts_ns
    return parts["compute"] + parts["recompute"]


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
        found.append(memory_of(plan, costs, comms, line.program, line, replayed=program))
    return tuple(found)


def _filling(
    plan: TrainingPlan,
    programs: tuple[Program, ...],
    comms: Communicators,
    stages: Sequence[StageSpec],
    costs: ComputeModel,
) -> tuple[Program, ...]:
    """Programs with as many micro-batches as fill the pipeline: memory peaks no later."""
    few = filled(plan)
    if plan.mesh.pp == 1 or few == plan:
        return programs
    return compile_programs(few, comms, stages, costs, feed=Feed(), steps=1)


def _step_durations(timelines: Sequence[Timeline], steps: int) -> tuple[int, ...]:
    ends = [max(line.step_window(k)[1] for line in timelines) for k in range(steps)]
    return tuple(end - begin for begin, end in zip([0, *ends[:-1]], ends, strict=True))
