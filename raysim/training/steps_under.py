"""The steady step under many kinds of noise at once: compiled once, priced for each on its graph.

Equal to simulating each by itself; where that is not certain, because communications may slow each
other, it is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.training.breakdown import KERNELS
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.graph.recosting import Costs, Ends, Ns, Recosting
from raysim.training.graph.step_graph import StepGraph
from raysim.training.noise import Noise, folded_factors, stretched
from raysim.training.on_links import communicators_alone
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs, enough, prepare, shortened
from raysim.training.program import COMPUTE, Kind
from raysim.training.stages import check_pipeline, pipeline_of
from raysim.training.tower import simulate, steady_passes, steps_to_steady


@collector_at_ease()
def steady_steps_ns(
    plan: TrainingPlan, cluster: ClusterSpec, noises: Sequence[Noise], feed: Feed
) -> list[int]:
    """``StepOutcome.steady_step_ns`` of a folded job under each, in their order."""
    check_pipeline(plan)
    few = shortened(plan, min(plan.gradient_accumulation_steps, enough(plan)))
    wired = [noise for noise in dict.fromkeys(noises) if not noise.links]
    known: dict[Noise, int] = {}
    if len(wired) > 1:
        known = _priced(plan, few, cluster, wired, feed)
    for noise in noises:
        if noise not in known:
            played = simulate(
                plan, cluster, simulation=Simulation(), feed=feed, memory=False, noise=noise
            )
            known[noise] = played.steady_step_ns
    return [known[noise] for noise in noises]


def _priced(
    plan: TrainingPlan,
    few: TrainingPlan,
    cluster: ClusterSpec,
    noises: Sequence[Noise],
    feed: Feed,
) -> dict[Noise, int]:
    """Those of which it is certain."""
    costs, stages, comms = prepare(few, cluster, folded=True)
    steps = steps_to_steady(few)
    programs = compile_programs(few, comms, stages, costs, feed=feed, steps=steps, memory=False)
    graph = StepGraph(programs, comms, communicators_alone(programs, comms))
    meetings = [node.pieces[0] for node in graph.nodes if node.meets]
    found = Recosting(graph, keep=graph.ends().union(meetings))
    priced = _under(found, comms, noises)
    ends = found.ends(priced)
    sure = ~ends.contended & ~_nearly_together([ends.end_ns[at] for at in meetings])
    total = ends.step_ns()[-1] + _left_out_ns(plan, few, found, priced, ends)
    return {noise: int(total[n]) for n, noise in enumerate(noises) if sure[n]}


def _under(found: Recosting, comms: Communicators, noises: Sequence[Noise]) -> Costs:
    """A column for each."""
    base = found.costs
    shape = len(found.ops), len(noises)
    duration, host, before = (np.empty(shape, dtype=np.int64) for _ in range(3))
    for column, noise in enumerate(noises):
        factors = folded_factors(found.graph.programs, comms, noise)
        for row, (op, program) in enumerate(found.ops):
            slower = stretched(op, *factors[program])
            local = op.kind == Kind.LOCAL
            duration[row, column] = slower.duration_ns if local else base.duration_ns[row, 0]
            host[row, column], before[row, column] = slower.host_ns, slower.before_ns
    return Costs(duration, host, before)


def _nearly_together(ends: Sequence[Ns]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Of each variant, whether two transfers end a nanosecond apart: the network joins those."""
    if len(ends) < 2:
        return np.zeros(ends[0].shape if ends else (), dtype=np.bool_)
    apart = np.diff(np.sort(np.array(ends), axis=0), axis=0)
    close: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = (apart == 1).any(axis=0)
    return close


def _left_out_ns(
    plan: TrainingPlan, few: TrainingPlan, found: Recosting, costs: Costs, ends: Ends
) -> Ns:
    """What the micro-batches add that were not compiled, as the slowest rank repeats them."""
    missing = plan.gradient_accumulation_steps - few.gradient_accumulation_steps
    programs = found.graph.programs
    if not missing:
        return np.zeros(costs.variants, dtype=np.int64)
    first, last = steady_passes(few, programs[0])
    repeats = missing * pipeline_of(few).passes / (last - first)
    busy, steady = [], []
    for number, (program, rows) in enumerate(zip(programs, found.rows, strict=True)):
        begin = program.step_ends[-2] if len(program.step_ends) > 1 else 0
        kernels = [
            row
            for op, row in zip(program.ops[begin:], rows[begin:], strict=True)
            if op.stream == COMPUTE and op.category in KERNELS and op.kind == Kind.LOCAL
        ]
        times = np.bincount(kernels, minlength=len(found.ops))
        busy.append(times @ costs.duration_ns)
        steady.append(ends.backward_end_ns(number, last) - ends.backward_end_ns(number, first))
    slowest = np.argmax(np.array(busy), axis=0)
    of_slowest = np.take_along_axis(np.array(steady), slowest[None], axis=0)[0]
    left_out: Ns = np.rint(repeats * of_slowest).astype(np.int64)
    return left_out
