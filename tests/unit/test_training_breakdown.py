"""Executor and breakdown on hand-made programs: every nanosecond has a cause."""

from __future__ import annotations

import pytest

from raysim.errors import InvariantViolation
from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation
from raysim.training.breakdown import step_breakdown
from raysim.training.communicators import Communicators
from raysim.training.executor import Executor, Timeline
from raysim.training.program import COMPUTE, Call, Kind, ProgramBuilder
from raysim.training.settings.parallel import Mesh
from tests.training_parts import cluster

MS = 1_000_000


def builder(rank: int = 0, launch_s: float = 0.0) -> ProgramBuilder:
    return ProgramBuilder(rank, launch_s=launch_s)


def run(*builders: ProgramBuilder, mesh: Mesh | None = None) -> list[Timeline]:
    mesh = mesh or Mesh(dp=2)
    topology = Topology.build(cluster(nodes=1))
    simulation = Simulation()
    comms = Communicators(mesh, topology, folded=len(builders) < mesh.world)
    for b in builders:
        b.end_step()
    executor = Executor(simulation, FlowNetwork(simulation, topology), comms)
    return executor.play([b.program for b in builders])


def parts_ms(line: Timeline) -> dict[str, float]:
    found = step_breakdown(line, 0).parts_ns
    return {k: v / MS for k, v in found.items() if v}


def test_streams_run_side_by_side_and_waits_join_them() -> None:
    b = builder()
    first = b.compute("a", "forward", 2e-3)
    other = b.compute("b", "copy", 5e-3, stream="h2d", waits=(first,))
    b.compute("c", "forward", 1e-3)
    b.compute("d", "forward", 1e-3, waits=(other,))
    (line,) = run(b)
    assert line.start_ns == [0, 2 * MS, 2 * MS, 7 * MS]
    assert parts_ms(line) == {"compute": 4, "offload": 4}


def test_a_gap_is_blamed_along_the_chain_that_made_it() -> None:
    """Compute waits for a copy-out, which waited for a host-to-device copy: 3 of 4 ms offload."""
    b = builder()
    shard = b.copy("shard", "h2d", 3e-3)
    out = b.compute("copy out", "collective", 1e-3, stream="gather", waits=(shard,))
    b.compute("layer", "forward", 2e-3, waits=(out,))
    (line,) = run(b)
    assert parts_ms(line) == {"offload": 3, "exposed_collectives": 1, "compute": 2}


def test_launch_bound_kernels_show_as_launch_gaps() -> None:
    """Ten launches of 1 ms for 4 ms of GPU work: the operation ends when its last kernel is out."""
    b = builder(launch_s=1e-3)
    b.compute("small kernels", "forward", 4e-3, launches=10)
    (line,) = run(b)
    assert line.end_ns == [10 * MS]
    assert parts_ms(line) == {"compute": 4, "launch": 6}


def test_host_work_on_data_is_a_data_wait() -> None:
    b = builder()
    b.host("load", 5e-3, "data")
    b.compute("a", "forward", 1e-3)
    (line,) = run(b)
    assert parts_ms(line) == {"data_wait": 5, "compute": 1}


def test_sync_holds_the_host_until_the_gpu_is_there() -> None:
    b = builder()
    a = b.compute("a", "forward", 3e-3)
    b.sync("item", (a,))
    b.compute("b", "forward", 1e-3)
    (line,) = run(b)
    assert line.start_ns[2] == 3 * MS
    assert parts_ms(line) == {"compute": 4}


def test_collective_starts_with_the_last_rank_and_ends_for_all() -> None:
    early, late = builder(0), builder(1)
    for b, wait_s in ((early, 1e-3), (late, 4e-3)):
        own = b.compute("own", "backward", wait_s)
        work = b.collective("all-reduce", Call("all_reduce", "dp", 1 << 26), waits=(own,))
        b.compute("use", "optimizer", 1e-3, waits=(work,))
    lines = run(early, late)
    assert [line.met_ns[1] for line in lines] == [4 * MS, 4 * MS]
    assert lines[0].end_ns[1] == lines[1].end_ns[1]
    assert lines[0].start_ns[1] == 1 * MS


def test_send_meets_receive_and_waiting_is_bubble() -> None:
    sender, receiver = builder(0), builder(1)
    sender.compute("work", "forward", 5e-3)
    sender.p2p(Kind.SEND, "activation", 1, 1 << 20)
    receiver.p2p(Kind.RECV, "activation", 0, 1 << 20)
    receiver.compute("work", "forward", 1e-3)
    lines = run(sender, receiver, mesh=Mesh(pp=2))
    assert lines[1].met_ns[0] == 5 * MS
    found = parts_ms(lines[1])
    assert found["bubble"] == 5
    assert found["pipeline_transfers"] == (lines[1].end_ns[0] - 5 * MS) / MS > 0


def test_ranks_that_never_meet_are_reported() -> None:
    a, b = builder(0), builder(1)
    a.collective("all-reduce", Call("all_reduce", "dp", 1024))
    b.compute("other", "forward", 1e-3)
    with pytest.raises(InvariantViolation, match="1 ranks wait for ever: rank 0"):
        run(a, b)


def test_ranks_that_disagree_on_a_call_are_caught() -> None:
    a, b = builder(0), builder(1)
    a.collective("x", Call("all_reduce", "dp", 1 << 20))
    b.collective("x", Call("all_gather", "dp", 1 << 20))
    with pytest.raises(AssertionError, match="disagree"):
        run(a, b)


def test_one_communicator_is_first_in_first_out() -> None:
    """A gather queued behind a reduction on the same communicator waits for it (spec 2)."""
    b = builder()
    slow = b.collective("reduce", Call("reduce_scatter", "dp", 1 << 28))
    quick = b.collective("gather", Call("all_gather", "dp", 1 << 10))
    b.compute("use", "forward", 1e-3, waits=(quick,))
    (line,) = run(b)
    assert line.start_ns[quick] == line.end_ns[slow]
    assert b.program.ops[slow].stream != COMPUTE
