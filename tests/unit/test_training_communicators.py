"""Where ranks sit, who they talk to, and what the network is charged for it."""

from __future__ import annotations

import pytest

from raysim.errors import ScenarioError
from raysim.hardware.topology import Topology
from raysim.training.communicators import Communicators
from raysim.training.program import Call
from raysim.training.settings.parallel import Coordinate, Mesh
from tests.training_parts import cluster


def comms(mesh: Mesh, nodes: int = 2, *, folded: bool = True) -> Communicators:
    return Communicators(mesh, Topology.build(cluster(nodes)), folded=folded)


def test_rank_order_is_deepspeeds() -> None:
    """rank = (pp * DP + dp) * TP + tp: tensor-parallel peers adjacent, stages farthest apart."""
    c = comms(Mesh(pp=2, dp=2, tp=4))
    assert c.members("tp", 0) == (0, 1, 2, 3)
    assert c.members("dp", 1) == (1, 5)
    assert c.members("pp", 2) == (2, 10)
    assert c.members("mp", 0) == (0, 1, 2, 3, 8, 9, 10, 11)
    assert c.placement[8] == (1, 0)
    mesh = c.mesh
    assert all(mesh.rank(mesh.coordinate(r)) == r for r in range(mesh.world))


def test_folding_simulates_one_rank_per_stage() -> None:
    mesh = Mesh(pp=4, dp=2, tp=2)
    assert comms(mesh).representatives() == tuple(
        mesh.rank(Coordinate(pp=p, dp=0, tp=0)) for p in range(4)
    )
    assert comms(mesh, folded=False).representatives() == tuple(range(16))
    assert comms(mesh).participants("dp", 0) == 1
    assert comms(mesh).participants("pp", 0) == 4
    assert comms(mesh, folded=False).participants("dp", 0) == 2


def test_folded_loads_are_the_sum_of_all_sibling_groups() -> None:
    """Eight data-parallel groups, one per rail, each alone on its NIC: as much in sum."""
    mesh, size = Mesh(dp=2, tp=8), 1 << 26
    call = Call("all_reduce", "dp", size)
    folded = comms(mesh).traffic(call, 0).ways
    exact = comms(mesh, folded=False)
    each = [exact.traffic(call, r).ways for r in range(8)]
    assert folded.bytes_on.sum() == pytest.approx(sum(x.bytes_on.sum() for x in each))
    assert all(not set(a.numbers) & set(b.numbers) for a in each for b in each if a is not b)


def test_equal_shapes_are_one_object() -> None:
    c = comms(Mesh(dp=2, tp=8))
    assert c.shape(c.members("tp", 0)) is c.shape(c.members("tp", 8))
    assert c.shape(c.members("tp", 0)) is not c.shape(c.members("dp", 0))
    assert c.shape(c.members("dp", 0)).nodes == 2


def test_point_to_point_counts_the_slowest_replica() -> None:
    """Three stages of four replicas on nodes of eight: only some neighbours share a node."""
    c = comms(Mesh(pp=3, dp=4), nodes=2)
    near = c.point_to_point(0, 4, 1 << 20).cost
    far = c.point_to_point(4, 8, 1 << 20).cost
    assert far.seconds > near.seconds


def test_what_a_send_costs_does_not_depend_on_what_was_asked_before() -> None:
    """Of 33 nodes the last is on the next leaf switch: two switches more on the way there."""
    mesh, size = Mesh(dp=33 * 8), 1 << 20
    asked = comms(mesh, nodes=33, folded=False)
    near, far = (asked.point_to_point(0, rank, size).cost.seconds for rank in (8, 32 * 8))
    again = comms(mesh, nodes=33, folded=False)
    assert again.point_to_point(0, 32 * 8, size).cost.seconds == far > near
    assert again.point_to_point(0, 8, size).cost.seconds == near


def test_copies_share_a_pcie_uplink() -> None:
    """Two GPUs hang on one switch: each gets half of x16 when all copy."""
    alone = comms(Mesh(dp=1))
    full = comms(Mesh(dp=8))
    assert full.copy_bytes_per_s == pytest.approx(alone.copy_bytes_per_s / 2)


def test_more_ranks_than_gpus_is_the_users_error() -> None:
    with pytest.raises(ScenarioError, match=r"needs 32 GPUs \(pp 2 x dp 4 x tp 4\); .* has 16"):
        comms(Mesh(pp=2, dp=4, tp=4))
