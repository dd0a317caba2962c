"""A node dies under load and comes back: who is told what, when."""

from __future__ import annotations

import pytest

from raysim.hardware.network import FlowNetwork
from raysim.hardware.node import Node, make_nodes
from raysim.hardware.topology import Topology
from raysim.kernel.component import NodeDied
from raysim.kernel.simulation import Simulation
from tests.hardware_parts import GB, cluster

S = 1_000_000_000


@pytest.fixture
def world():
    sim = Simulation(check=True)
    topology = Topology.build(cluster(2, bare=1))
    network = FlowNetwork(sim, topology)
    return sim, topology, network, make_nodes(sim, network, topology)


def test_parts_of_a_node(world):
    _, topology, _, nodes = world
    assert [len(n.gpus) for n in nodes] == [8, 8, 0]
    assert [len(n.nics) for n in nodes] == [8, 8, 1]
    assert [d.name for d in nodes[1].disks] == ["node-1/disk-0", "node-1/disk-1"]
    assert nodes[1].gpus[3].address == (1, 3)
    assert nodes[1].memory.link is topology.node(1).memory


def test_copies_and_the_cpus_own_traffic_share_the_memory_bus(world):
    # 400 GB/s of bus: eight copies of 60 GB/s would need 480, on four switches of 60 they need 240;
    # the CPU's own 400 GB of traffic gets the other 160 until they are through.
    sim, _, network, nodes = world
    ends = []
    for i in range(8):
        network.send(("gpu", 0, i), ("host", 0), 30 * GB, ends.append, f"d2h {i}")
    nodes[0].memory.job(400 * GB, lambda _: ends.append(sim.now_ns / S))
    sim.run()
    assert ends[:8] == [f"d2h {i}" for i in range(8)]
    # Copies end at 1 s (two share a switch of 60 GB/s); then 240 GB remain at 400 GB/s.
    assert ends[8] == pytest.approx(1.0 + 240 / 400)


def test_death_ends_what_touches_the_node_with_the_cause(world):
    sim, _, network, nodes = world
    story: list[tuple[float, str]] = []

    def tell(what):
        story.append((round(sim.now_ns / S, 3), what))

    def told(what, cause):
        assert cause == NodeDied(address="node-1", node="node-1")
        tell(f"{what} failed")

    def transfer(src, dst, size_bytes, what):
        loads = [(link, 1.0) for link in world[1].path(src, dst)]
        network.start(loads, size_bytes, then=tell, failed=told, arg=what)

    transfer(("gpu", 0, 0), ("gpu", 1, 0), 500 * GB, "0 to 1")
    transfer(("gpu", 0, 0), ("gpu", 0, 5), 800 * GB, "inside 0")
    nodes[1].cpu.job(100.0, tell, "cpu of 1", failed=told)
    nodes[1].disks[0].read(100 * GB, tell, "disk of 1", failed=told)
    nodes[0].cpu.job(4.0, tell, "cpu of 0", failed=told)
    sim.at("1s", nodes[1].fail)
    sim.at("1s", nodes[1].fail)
    sim.at("3s", lambda: nodes[1].cpu.job(1.0, tell, "too late", failed=told))
    sim.at("5s", nodes[1].restore)
    sim.at("6s", lambda: transfer(("gpu", 0, 0), ("gpu", 1, 0), 50 * GB, "again"))
    sim.at("6s", lambda: nodes[1].cpu.job(2.0, tell, "cpu again", failed=told))
    sim.run()
    assert story == [
        (1.0, "cpu of 1 failed"), (1.0, "disk of 1 failed"), (1.0, "0 to 1 failed"),
        (2.0, "inside 0"), (3.0, "too late failed"), (4.0, "cpu of 0"),
        (7.0, "again"), (8.0, "cpu again"),
    ]  # fmt: skip


def test_memory_is_empty_and_streams_idle_after_a_reboot(world):
    sim, _, _, nodes = world
    node: Node = nodes[0]
    device = node.gpus[2]
    device.ledger.apply(0, "parameter", 1000, "load")
    device.stream("compute").push(0, 50 * S)
    node.ledger.apply(0, "process", 10)
    sim.at("1s", node.fail)
    sim.at("9s", node.restore)
    sim.run(until="2s")
    assert device.failure == node.failure == NodeDied(address="node-0", node="node-0")
    sim.run()
    assert device.failure is node.failure is None
    assert device.ledger.held(sim.now_ns) == node.ledger.held(sim.now_ns) == {}
    assert device.ledger.peak().total_bytes == 1000
    assert device.stream("compute").free_at_ns == 0
