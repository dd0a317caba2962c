"""What lies between two rooms: connections that are made when one first calls the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.cluster import Cluster
from raysim.raycore.protocol import GCS
from tests.hardware_parts import bare_node

COSTS = RayCosts(connect_ns=1_000_000, grpc_same_host_ns=100_000, grpc_work_ns=20_000)


def cluster(host_of: tuple[int, ...] | None = None, costs: RayCosts = COSTS) -> Cluster:
    node = replace(bare_node(vcpus=2), disks=())
    groups = tuple(
        NodeGroup(name=name, node=node, count=1, head=name == "head") for name in ("head", "more")
    )
    return Cluster(Simulation(), ClusterSpec(groups=groups, host_of=host_of), costs=costs)


def hop_ns(of: Cluster, source: str, target: str) -> int:
    """How long a message takes; others that are under way have arrived."""
    sim, arrived = of.sim, []
    sim.run()
    began_ns = sim.now_ns
    of.wire.deliver(
        of.wire.end(source), of.wire.end(target), 0.0, lambda _: arrived.append(sim.now_ns), None
    )
    sim.run()
    return int(arrived[0] - began_ns)


def test_the_first_message_between_two_processes_waits_for_their_connection() -> None:
    two = cluster()
    one, other = "node-0/worker-1", "node-0/worker-2"
    assert hop_ns(two, one, other) == 1_100_000
    assert hop_ns(two, one, other) == 100_000
    assert hop_ns(two, other, one) == 100_000
    assert hop_ns(two, other, "node-0/worker-3") == 1_100_000


def test_what_follows_waits_for_the_connection_too() -> None:
    two, heard = cluster(), []
    one, other = (two.wire.end(f"node-0/worker-{k}") for k in (1, 2))
    for number, source, target in ((0, one, other), (1, one, other), (2, other, one)):
        two.wire.deliver(source, target, 0.0, heard.append, number)
    two.sim.run(1_099_999)
    assert not heard
    two.sim.run(1_100_001)
    assert heard == [0, 1, 2]


def test_rooms_of_a_raylet_have_its_connections_and_every_process_that_to_the_gcs() -> None:
    two = cluster()
    worker, far = "node-0/worker-1", "node-1/worker-1"
    assert hop_ns(two, worker, GCS) == 100_000
    first, again = (hop_ns(two, far, f"node-0/{room}") for room in ("raylet", "object_manager"))
    assert first - again == 1_000_000
    assert hop_ns(two, worker, "node-0/plasma") < 100_000  # a socket it has


def test_connecting_is_work_where_cores_are_few() -> None:
    two = cluster(host_of=(0, 0))
    load = two.env.nodes[0].host.load
    assert load is not None
    load.cold_factor = 1.0
    target = "node-1/worker-2"
    assert hop_ns(two, "node-0/worker-1", target) == pytest.approx(1_100_000, rel=0.03)
    assert load.worked_ns[target] == 1_020_000


@pytest.mark.parametrize("host_of", [None, (0, 0)])
def test_a_hop_takes_at_least_its_work(host_of: tuple[int, ...] | None) -> None:
    short = replace(COSTS, grpc_same_host_ns=5_000, grpc_cross_host_extra_ns=0, cold_factor=1.0)
    two = cluster(host_of, short)
    one, other = "node-0/worker-1", "node-0/worker-2"
    assert hop_ns(two, one, other) >= 1_020_000
    assert hop_ns(two, one, other) == pytest.approx(20_000, rel=0.1)
