"""Properties of compiled and played plans, over random plans and random programs."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.training.breakdown import step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.executor import Executor
from raysim.training.memory.peaks import ledger
from raysim.training.program import Call, Kind, Op, ProgramBuilder
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster, llama, plan, play

MODEL = llama(layers=4, hidden=128, seq_len=64)
MESHES = [
    Mesh(dp=1), Mesh(dp=4), Mesh(dp=2, tp=2), Mesh(pp=2, dp=2), Mesh(pp=2, dp=1, tp=4),
    Mesh(pp=4, dp=2, tp=2),
]  # fmt: skip


@st.composite
def plans(draw: st.DrawFn) -> Any:
    mesh = draw(st.sampled_from(MESHES))
    stage = draw(st.sampled_from([0, 1] if mesh.pp > 1 else [0, 1, 2, 3]))
    zero = {
        "overlap_comm": draw(st.sampled_from([None, True, False])),
        "reduce_bucket_size": draw(st.sampled_from([1000, 50_000, 10**6])),
        "stage3_prefetch_bucket_size": draw(st.sampled_from([0, 20_000, 10**6])),
        "stage3_param_persistence_threshold": draw(st.sampled_from([0, 1000])),
        "stage3_max_reuse_distance": draw(st.sampled_from([0, 100_000, 10**9])),
    }
    engine = "ddp" if stage == 0 and mesh.pp == 1 and draw(st.booleans()) else "deepspeed"
    return plan(
        MODEL,
        stage=stage,
        mesh=mesh,
        engine=engine,
        zero=zero,
        micro_batch=draw(st.integers(1, 3)),
        gradient_accumulation_steps=draw(st.integers(1, 5)),
        precision=draw(st.sampled_from(["fp32", "fp16", "bf16"])),
        activation_checkpointing=draw(st.sampled_from(["none", "full"])),
    )


@settings(max_examples=25, deadline=None)
@given(plans())
def test_any_plan_plays_to_the_end_and_accounts_for_its_time(p: Any) -> None:
    played = play(p, cluster(2))
    assert played.steady_step_ns > 0
    for line in played.timelines:
        found = step_breakdown(line, len(played.step_ns) - 1)
        assert sum(found.parts_ns.values()) == found.step_ns
        assert all(ns >= 0 for ns in found.parts_ns.values())
        for i, op in enumerate(line.program.ops):
            assert line.end_ns[i] >= line.met_ns[i] >= line.start_ns[i] >= 0
            waits = () if op.kind == Kind.SYNC else line.program.waits(i)
            assert all(line.end_ns[w] <= line.start_ns[i] for w in waits)
    for line, memory in zip(played.timelines, played.memory, strict=True):
        ledger(line, memory.track, played.costs.gpu).check()
        assert sum(memory.by_category.values()) == memory.peak_bytes


@settings(max_examples=15, deadline=None)
@given(plans())
def test_folding_changes_nothing_where_replicas_are_equal(p: Any) -> None:
    """All ranks on one node: every replica sees the same links."""
    if p.mesh.world > 8:
        return
    folded, exact = (play(p, cluster(1), exact=e) for e in (False, True))
    assert abs(folded.steady_step_ns - exact.steady_step_ns) <= 0.002 * exact.steady_step_ns
    assert folded.fullest.peak_bytes == exact.fullest.peak_bytes


def reference(ops: list[Op]) -> list[int]:
    """Ends of local operations by the definition: host order, stream order, waits."""
    host, tail, ends = 0, {}, []
    for i, op in enumerate(ops):
        host += op.before_ns
        waits = [ends[i - back] for back in op.back]
        if op.kind == Kind.SYNC:
            host = max([host, *waits])
            ends.append(host)
        elif op.kind == Kind.HOST:
            host += op.host_ns
            ends.append(host)
        else:
            start = max([host, tail.get(op.stream, 0), *waits])
            host += op.host_ns
            ends.append(max(start + op.duration_ns, host))
            tail[op.stream] = ends[-1]
    return ends


@st.composite
def local_programs(draw: st.DrawFn) -> ProgramBuilder:
    b = ProgramBuilder(0, launch_s=draw(st.sampled_from([0.0, 1e-6])))
    for i in range(draw(st.integers(1, 25))):
        waits = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        kind = draw(st.sampled_from(["compute", "copy", "host", "sync"]))
        seconds = draw(st.integers(0, 50)) * 1e-6
        if kind == "compute":
            stream = draw(st.sampled_from(["compute", "side"]))
            b.compute("k", "forward", seconds, waits=waits, stream=stream)
        elif kind == "copy":
            b.copy("c", "h2d", seconds, waits)
        elif kind == "host":
            b.host("h", seconds)
        else:
            b.sync("s", waits)
    b.end_step()
    return b


@given(local_programs())
def test_executor_equals_the_definition_of_streams(b: ProgramBuilder) -> None:
    topology = Topology.build(cluster(1))
    simulation = Simulation()
    comms = Communicators(Mesh(), topology, folded=True)
    (line,) = Executor(simulation, FlowNetwork(simulation, topology), comms).play([b.program])
    assert line.end_ns == reference(b.program.ops)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12))
def test_collectives_meet_in_order_and_never_before_the_last_rank(works: Any) -> None:
    builders = [ProgramBuilder(r, launch_s=0.0) for r in range(2)]
    for pair in works:
        for b, us in zip(builders, pair, strict=True):
            own = b.compute("own", "backward", us * 1e-6)
            work = b.collective("all-reduce", Call("all_reduce", "dp", 1 << 20), waits=(own,))
            b.compute("use", "forward", 1e-6, waits=(work,))
    for b in builders:
        b.end_step()
    topology = Topology.build(cluster(1))
    simulation = Simulation()
    comms = Communicators(Mesh(dp=2), topology, folded=False)
    executor = Executor(simulation, FlowNetwork(simulation, topology), comms)
    lines = executor.play([b.program for b in builders])
    for i, op in enumerate(builders[0].program.ops):
        if op.kind == Kind.COLLECTIVE:
            assert lines[0].met_ns[i] == max(line.start_ns[i] for line in lines)
            assert lines[0].end_ns[i] == lines[1].end_ns[i] > lines[0].met_ns[i]
