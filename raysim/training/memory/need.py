"""What a plan needs of a GPU and of a host at most: its programs are compiled, never played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import collector_at_ease
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.compute import ComputeModel
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.compiler.kept_inputs import offloaded_bytes
from raysim.training.executor import Timeline
from raysim.training.layers.sections import weights_of
from raysim.training.memory.bounds import at_most
from raysim.training.memory.host import HostMemory, host_memory
from raysim.training.memory.peaks import RankMemory, rank_memory
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs, filled, prepare
from raysim.training.program import Program
from raysim.training.stages import StageSpec, check_pipeline, pipeline_of


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
    plan = filled(plan)
    costs, stages, comms = prepare(plan, cluster, folded=True)
    most = 0
    for bound, program in _fullest_first(plan, comms, stages, costs):
        if bound < most:
            break
        found = memory_of(
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
    of_experts = (g for s in stages for u in s.units for g in u.gradients if g.expert)
    experts: Counter[int] = Counter()  # no pipeline has any of DeepSpeed's
    for g in of_experts if plan.moe_groups else ():
        experts[g.among or plan.mesh.ep] += g.numel
    found = host_memory(
        plan, sum(fullest), held, node, comms.ranks_per_node, fullest,
        experts=experts,
    )  # fmt: skip
    return found.holding("activation", offloaded_bytes(plan, stages) * comms.ranks_per_node)


def memory_of(
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
