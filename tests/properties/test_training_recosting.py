"""A step priced again on its graph ends when the executor says, to the nanosecond."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.executor import Executor, Timeline
from raysim.training.graph.recosting import Costs, Recosting
from raysim.training.graph.step_graph import StepGraph
from raysim.training.on_links import communicators_alone
from raysim.training.prepared import compile_programs, prepare
from raysim.training.program import Kind, Program
from raysim.training.settings.deepspeed import PipelineSettings
from raysim.training.settings.parallel import Mesh
from tests.properties.test_training_tower import local_programs, plans
from tests.training_parts import cluster, llama, plan

WHERE = cluster(2)


def compiled(p: Any, *, folded: bool, steps: int) -> tuple[tuple[Program, ...], Communicators]:
    costs, stages, comms = prepare(p, WHERE, folded=folded)
    feed = Feed(host_s=1e-4, loader_s=1e-3, copy_bytes=1e6)
    return compile_programs(p, comms, stages, costs, feed=feed, steps=steps, memory=False), comms


def played(programs: Any, comms: Communicators) -> list[Timeline]:
    simulation = Simulation()
    return Executor(simulation, FlowNetwork(simulation, comms.topology), comms).play(programs)


def varied(found: Recosting, seed: int, variants: int) -> Costs:
    """Costs between nothing and three times as much, transfers as they are."""
    rng = np.random.default_rng(seed)
    base = found.costs

    def times(column: Any) -> Any:
        return np.rint(column * rng.uniform(0, 3, (len(column), variants))).astype(np.int64)

    local = np.array([op.kind == Kind.LOCAL for op, _ in found.ops])[:, None]
    duration = np.where(local, times(base.duration_ns), base.duration_ns)
    return Costs(duration, times(base.host), times(base.before))


def with_costs(programs: Any, found: Recosting, costs: Costs, variant: int) -> list[Program]:
    """The programs with the operations of one variant."""
    changed = []
    for row, (op, _) in enumerate(found.ops):
        other = copy(op)
        if op.kind == Kind.LOCAL:
            other.duration_ns = int(costs.duration_ns[row, variant])
        other.host_ns = int(costs.host[row, variant])
        other.before_ns = int(costs.before[row, variant])
        changed.append(other)
    some = []
    for program, rows in zip(programs, found.rows, strict=True):
        ops = []
        for op, row in zip(program.ops, rows, strict=True):
            other = copy(changed[row])
            other.back, other.call = op.back, op.call
            ops.append(other)
        some.append(replace(program, ops=ops))
    return some


def compare(programs: Any, comms: Communicators, seed: int, variants: int) -> int:
    """How many of the variants were compared: those in which nothing contends."""
    graph = StepGraph(programs, comms, communicators_alone(programs, comms))
    found = Recosting(graph, keep=range(len(graph.pieces)))
    costs = varied(found, seed, variants)
    ends = found.ends(costs)
    steps = ends.step_ns()
    alone = np.flatnonzero(~ends.contended)
    for variant in alone:
        lines = played(with_costs(programs, found, costs, int(variant)), comms)
        for at, piece in enumerate(graph.pieces):
            assert ends.end_ns[at][variant] == lines[piece.program].end_ns[piece.stop - 1]
        ending = [max(line.step_window(k)[1] for line in lines) for k in range(len(steps))]
        assert steps[:, variant].cumsum().tolist() == ending
        for number, line in enumerate(lines):
            for count in range(1, len(line.program.backward_ends) + 1):
                assert ends.backward_end_ns(number, count)[variant] == line.backward_end_ns(count)
    return len(alone)


@settings(max_examples=40, deadline=None)
@given(p=plans(), seed=st.integers(0, 2**32 - 1), folded=st.booleans(), steps=st.integers(1, 2))
def test_any_plan_priced_again_ends_as_played(
    p: Any, seed: int, *, folded: bool, steps: int
) -> None:
    programs, comms = compiled(p, folded=folded, steps=steps)
    assume(compare(programs, comms, seed, variants=3))


@settings(max_examples=60, deadline=None)
@given(b=local_programs(), seed=st.integers(0, 2**32 - 1))
def test_any_program_of_one_rank_priced_again_ends_as_played(b: Any, seed: int) -> None:
    comms = Communicators(Mesh(), Topology.build(WHERE), folded=True)
    assert compare([b.program], comms, seed, variants=2) == 2


def test_where_flows_share_a_link_the_executor_must_be_asked() -> None:
    """Gradients of two pipeline stages leave one node over its NICs while activations do."""
    p = plan(
        llama(layers=4, hidden=512),
        stage=1,
        mesh=Mesh(pp=4, dp=4),
        gradient_accumulation_steps=4,
        pipeline=PipelineSettings(stages=4, partition_method="uniform"),
    )
    programs, comms = compiled(p, folded=False, steps=1)
    graph = StepGraph(programs, comms, communicators_alone(programs, comms))
    found = Recosting(graph)
    ends, lines = found.ends(found.costs), played(programs, comms)
    equal = ends.step_ns()[-1, 0] == max(line.step_window(0)[1] for line in lines)
    assert equal or ends.contended[0]
