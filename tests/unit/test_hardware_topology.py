from __future__ import annotations

from itertools import product

import pytest

from raysim.hardware.node_links import mesh_widths
from raysim.hardware.topology import Link, Topology, latency_s
from tests.hardware_parts import GB, bare_node, cluster, gpu, nic, node


def names(path: tuple[Link, ...]) -> list[str]:
    return [link.name for link in path]


def by_name(loads: dict[Link, float]) -> dict[str, float]:
    return {link.name: load for link, load in loads.items()}


NO_LINKS = node(gpu=gpu(scale_up_links=0), gpu_fabric="nvlink_mesh")
FABRICS = [
    {"kind": "star"},
    {"kind": "star", "oversubscription": 4.0},
    {"kind": "fat_tree", "nodes_per_leaf": 2, "oversubscription": 2.0},
    {"kind": "rail_fat_tree", "nodes_per_leaf": 2},
]
BOXES = {
    "nvswitch": node(),
    "cube_mesh": node(
        gpu=gpu(architecture="volta", scale_up_links=6, scale_up_bytes_per_s=150 * GB),
        gpu_fabric="nvlink_mesh", nic_count=4,
    ),
    "full_mesh": node(gpu=gpu(scale_up_links=7), gpu_fabric="nvlink_mesh"),
    "pcie": node(gpu_fabric="pcie", nic_count=1, nic=nic(kind="ethernet", rdma=False)),
    "pcie_rdma": node(gpu_fabric="pcie", nic_count=2),
    "one_gpu": node(gpu_count=1, gpu_fabric=None, nic_count=1),
    "host_nic": node(host_nic=nic(kind="ethernet", bytes_per_s=12.5 * GB, rdma=False)),
    "efa": node(nic=nic(bytes_per_s=12.5 * GB), nic_count=32),
}  # fmt: skip


@pytest.mark.parametrize("fabric", FABRICS, ids=str)
@pytest.mark.parametrize("box", BOXES.values(), ids=BOXES.keys())
def test_every_route_is_a_walk_on_the_graph(box, fabric):
    topology = Topology.build(cluster(3, of=box, bare=2, **fabric))
    edges = {}
    for u, v, data in topology.graph.edges(data=True):
        edges.setdefault(data["link"], set()).add((u, v))
    ends = [("gpu", n, i) for n in (0, 2) for i in range(box.gpu_count)]
    ends += [("host", n) for n in range(5)] + [("storage",)]
    for src, dst in product(ends, ends):
        if src == dst:
            continue
        path = topology.path(src, dst)
        at = {src}
        for link in path:
            at = {v for u, v in edges[link] if u in at}
            assert at, f"{src} to {dst}: {link.name} does not follow in {names(path)}"
        assert dst in at
        assert len(set(path)) == len(path), f"{names(path)} crosses a link twice"


def test_links_are_numbered_over_all_nodes_gpu_nodes_first():
    topology = Topology.build(cluster(1, bare=1))
    assert topology.path(("host", 1), ("host", 0))[0].name == "node-1/memory"
    found = [link.name for link in topology.links]
    assert len(found) == len(set(found))
    # 16 NVLink, 16 PCIe, 8 switch, 4 socket, 1 memory, 16 NIC; bare: memory, 2 NIC; storage: 2.
    assert len(found) == 16 + 16 + 8 + 4 + 1 + 16 + 3 + 2


def test_nvswitch_port_is_what_nccl_counts():
    h100 = gpu(architecture="hopper", scale_up_links=18, scale_up_bytes_per_s=450 * GB)
    topology = Topology.build(cluster(1, of=node(gpu=h100)))
    out, into = topology.path(("gpu", 0, 1), ("gpu", 0, 5))
    assert (out.name, into.name) == ("node-0/gpu-1/nvlink-out", "node-0/gpu-5/nvlink-in")
    assert out.bytes_per_s == pytest.approx(18 * 20.6 * GB)  # NCCL topo.h SM90_NVLINK_BW


def test_cube_mesh_uses_six_links_per_gpu_and_relays_where_there_is_none():
    widths = mesh_widths(gpu(architecture="volta", scale_up_links=6), 8)
    assert all(sum(row) == 6 for row in widths)
    assert all(widths[i][j] == widths[j][i] for i in range(8) for j in range(8))
    topology = Topology.build(cluster(1, of=BOXES["cube_mesh"]))
    assert names(topology.path(("gpu", 0, 0), ("gpu", 0, 3))) == ["node-0/nvlink-0-3"]
    assert topology.path(("gpu", 0, 0), ("gpu", 0, 3))[0].bytes_per_s == pytest.approx(2 * 20 * GB)
    relayed = names(topology.path(("gpu", 0, 0), ("gpu", 0, 5)))
    assert relayed == ["node-0/nvlink-0-1", "node-0/nvlink-1-5"]


def test_pcie_tree_crosses_switches_and_sockets():
    topology = Topology.build(cluster(1, of=BOXES["pcie_rdma"]))
    assert names(topology.path(("gpu", 0, 0), ("gpu", 0, 1))) == [
        "node-0/gpu-0/pcie-out", "node-0/gpu-1/pcie-in",
    ]  # fmt: skip
    assert names(topology.path(("gpu", 0, 0), ("gpu", 0, 3)))[1:-1] == [
        "node-0/pcie-0/up", "node-0/pcie-1/down",
    ]  # fmt: skip
    assert names(topology.path(("gpu", 0, 0), ("gpu", 0, 7)))[1:-1] == [
        "node-0/pcie-0/up", "node-0/socket-0/out", "node-0/socket-1/in", "node-0/pcie-3/down",
    ]  # fmt: skip


def test_copy_to_the_host_shares_the_memory_bus_with_plain_ethernet():
    topology = Topology.build(cluster(2, of=BOXES["pcie"]))
    assert names(topology.path(("gpu", 0, 2), ("host", 0)))[-1] == "node-0/memory"
    assert "node-0/memory" in names(topology.path(("gpu", 0, 2), ("gpu", 1, 2)))
    rdma = Topology.build(cluster(2, of=BOXES["pcie_rdma"]))
    assert "node-0/memory" not in names(rdma.path(("gpu", 0, 2), ("gpu", 1, 2)))


def test_host_traffic_takes_the_hosts_own_network():
    topology = Topology.build(cluster(2, of=BOXES["host_nic"], bare=1, kind="rail_fat_tree"))
    assert names(topology.path(("host", 0), ("host", 2))) == [
        "node-0/memory", "node-0/host-nic/out", "node-2/nic-0/in", "node-2/memory",
    ]  # fmt: skip
    assert names(topology.path(("gpu", 0, 5), ("storage",))) == [
        "node-0/gpu-5/pcie-out", "node-0/pcie-2/up", "node-0/memory", "node-0/host-nic/out",
        "storage/in",
    ]  # fmt: skip
    assert topology.path(("host", 0), ("host", 1))[1].bytes_per_s == pytest.approx(12.5 * GB)
    assert "node-0/nic-5/out" in names(topology.path(("gpu", 0, 5), ("gpu", 1, 5)))


def test_rails_stay_on_their_leaf_and_change_over_nvlink():
    topology = Topology.build(cluster(4, kind="rail_fat_tree", nodes_per_leaf=2))
    assert names(topology.path(("gpu", 0, 3), ("gpu", 1, 3))) == [
        "node-0/gpu-3/pcie-out", "node-0/nic-3/out", "node-1/nic-3/in", "node-1/gpu-3/pcie-in",
    ]  # fmt: skip
    # PXN: GPU 0 hands over to its neighbour on the rail of the target.
    assert names(topology.path(("gpu", 0, 0), ("gpu", 1, 3)))[:3] == [
        "node-0/gpu-0/nvlink-out", "node-0/gpu-3/nvlink-in", "node-0/gpu-3/pcie-out",
    ]  # fmt: skip
    far = names(topology.path(("gpu", 0, 3), ("gpu", 2, 3)))
    assert far[2:4] == ["leaf-0-3/up", "leaf-1-3/down"]


def test_uplinks_are_ports_over_oversubscription():
    topology = Topology.build(
        cluster(4, kind="rail_fat_tree", nodes_per_leaf=2, oversubscription=4.0)
    )
    up = topology.path(("gpu", 0, 3), ("gpu", 2, 3))[2]
    assert up.bytes_per_s == pytest.approx(2 * 50 * GB / 4)
    fat = Topology.build(cluster(4, kind="fat_tree", nodes_per_leaf=2, oversubscription=2.0))
    up = fat.path(("gpu", 0, 3), ("gpu", 2, 5))[2]
    assert up.bytes_per_s == pytest.approx(2 * 8 * 50 * GB / 2)
    star = Topology.build(cluster(2, oversubscription=2.0))
    plane = next(link for link in star.links if link.name == "switch/backplane")
    assert plane.bytes_per_s == pytest.approx(2 * 8 * 50 * GB / 2)
    assert plane in star.path(("host", 0), ("host", 1))


def test_latency_of_a_route_is_that_of_its_ports_and_switches():
    topology = Topology.build(cluster(4, bare=2, kind="fat_tree", nodes_per_leaf=2))
    near = latency_s(topology.path(("host", 4), ("host", 5)))
    assert near == pytest.approx(2e-5)  # the Ethernet ports, memory buses are free
    assert latency_s(topology.path(("gpu", 0, 0), ("gpu", 0, 0))) == 0
    far = latency_s(topology.path(("gpu", 0, 0), ("gpu", 2, 0)))
    close = latency_s(topology.path(("gpu", 0, 0), ("gpu", 1, 0)))
    assert far - close == pytest.approx(2 * 0.15e-6)  # two more InfiniBand switches


def test_nvl72_domain_spans_hosts():
    tray = node(gpu_count=4, nic_count=4, nvlink_domain=72)
    topology = Topology.build(cluster(20, of=tray))
    assert names(topology.path(("gpu", 0, 1), ("gpu", 17, 2))) == [
        "node-0/gpu-1/nvlink-out", "node-17/gpu-2/nvlink-in",
    ]  # fmt: skip
    assert "node-18/nic-2/in" in names(topology.path(("gpu", 0, 1), ("gpu", 18, 2)))
    members = [(n, i) for n in range(20) for i in range(4)]
    assert [len(group) for group in topology.islands(members)] == [72, 8]
    spread = topology.spread(members)
    assert spread[:4] == (80, 2, 72, 8)  # ranks, islands, in the fullest, NICs near the smallest
    assert spread.latency_s == topology.inter_node_latency_s(members) > 0.0
    inside = topology.collective_loads(members[:72], 10.0, 99.0)
    assert set(inside.values()) == {10.0}
    assert len(inside) == 2 * 72


def test_collective_loads_ports_nics_and_pcie():
    topology = Topology.build(cluster(2, kind="rail_fat_tree"))
    members = [(n, i) for n in range(2) for i in range(8)]
    loads = by_name(topology.collective_loads(members, 7.0, 16.0))
    assert loads["node-1/gpu-5/nvlink-out"] == loads["node-0/gpu-0/nvlink-in"] == 7.0
    assert loads["node-0/nic-7/out"] == loads["node-1/nic-2/in"] == 2.0  # 16 over 8 rails
    assert loads["node-0/gpu-7/pcie-out"] == 2.0
    assert len(loads) == 2 * 8 * 6
    assert topology.spread(members) == (16, 2, 8, 8, pytest.approx(2e-6 + 2 * 0.5e-6))
    assert topology.spread(members[:8]) == (8, 1, 8, 8, 0.0)


def test_one_member_per_node_uses_its_own_rail_only():
    topology = Topology.build(cluster(2, kind="rail_fat_tree"))
    loads = by_name(topology.collective_loads([(0, 3), (1, 3)], 7.0, 16.0))
    assert loads == dict.fromkeys(
        [f"node-{n}/{port}" for n in (0, 1) for port in
         ("nic-3/out", "nic-3/in", "gpu-3/pcie-out", "gpu-3/pcie-in")],
        16.0,
    )  # fmt: skip


def test_four_narrow_nics_per_gpu_share_its_bytes():
    topology = Topology.build(cluster(2, of=BOXES["efa"]))
    assert topology.nics_near([(0, 1)]) == [(0, 4), (0, 5), (0, 6), (0, 7)]
    loads = by_name(topology.collective_loads([(0, 1), (1, 1)], 0.0, 8.0))
    assert loads["node-0/nic-4/out"] == loads["node-1/nic-7/in"] == 2.0
    assert topology.spread([(0, 1), (1, 1)]).near == 4


def test_a_ring_over_pods_loads_each_uplink_once_per_crossing():
    topology = Topology.build(cluster(4, kind="rail_fat_tree", nodes_per_leaf=2))
    in_order = [(n, 0) for n in range(4)]
    loads = by_name(topology.collective_loads(in_order, 0.0, 5.0))
    assert loads["leaf-0-0/up"] == loads["leaf-0-0/down"] == 5.0
    alternating = [(n, 0) for n in (0, 2, 1, 3)]  # every hop changes pod
    loads = by_name(topology.collective_loads(alternating, 0.0, 5.0))
    assert loads["leaf-0-0/up"] == loads["leaf-1-0/down"] == 10.0


def test_mesh_spreads_by_width_and_pcie_rings_cross_the_sockets():
    mesh = Topology.build(cluster(1, of=BOXES["cube_mesh"]))
    loads = by_name(mesh.collective_loads([(0, i) for i in range(8)], 6.0, 0.0))
    assert loads["node-0/nvlink-0-3"] == 2.0
    assert loads["node-0/nvlink-0-1"] == 1.0
    assert sum(loads.values()) == pytest.approx(8 * 6.0)
    # GPUs 0 and 5 have no link between them: their ring goes through a relay.
    assert by_name(mesh.collective_loads([(0, 0), (0, 5)], 6.0, 0.0)) == {
        "node-0/nvlink-0-1": 6.0, "node-0/nvlink-1-5": 6.0,
        "node-0/nvlink-5-1": 6.0, "node-0/nvlink-1-0": 6.0,
    }  # fmt: skip
    pcie = Topology.build(cluster(1, of=BOXES["pcie_rdma"]))
    loads = by_name(pcie.collective_loads([(0, i) for i in range(8)], 6.0, 0.0))
    assert loads["node-0/gpu-3/pcie-out"] == loads["node-0/gpu-3/pcie-in"] == 6.0
    assert loads["node-0/pcie-1/up"] == loads["node-0/socket-0/out"] == 6.0


def test_siblings_add_up_group_by_group():
    topology = Topology.build(cluster(3, kind="rail_fat_tree", nodes_per_leaf=2))
    groups = [[(n, i) for n in range(3)] for i in range(8)]
    together = topology.sibling_loads(groups, 3.0, 4.0)
    apart: dict[Link, float] = {}
    for group in groups:
        for link, load in topology.collective_loads(group, 3.0, 4.0).items():
            apart[link] = apart.get(link, 0.0) + load
    assert together == apart


def test_an_end_that_does_not_exist_is_refused():
    topology = Topology.build(cluster(1))
    with pytest.raises(ValueError, match="no such end"):
        topology.path(("disk", 0), ("host", 0))
    with pytest.raises(ValueError, match="other than storage"):
        topology.path(("storage",), ("storage",))
    with pytest.raises(ValueError, match="no NVLinks"):
        Topology.build(cluster(1, of=NO_LINKS)).node(0)


def test_a_node_without_gpus_has_a_port_and_memory_only():
    topology = Topology.build(cluster(1, of=bare_node()))
    assert {link.name for link in topology.node_links(0)} == {
        "node-0/memory", "node-0/nic-0/out", "node-0/nic-0/in",
    }  # fmt: skip


def test_plain_ethernet_collectives_cross_memory_in_and_out():
    topology = Topology.build(cluster(2, of=BOXES["pcie"]))
    loads = by_name(topology.collective_loads([(0, 0), (1, 0)], 0.0, 3.0))
    assert loads["node-0/memory"] == 6.0
    assert loads["node-0/pcie-0/up"] == loads["node-0/pcie-0/down"] == 3.0
    rdma = Topology.build(cluster(2))
    assert "node-0/memory" not in by_name(rdma.collective_loads([(0, 0), (1, 0)], 0.0, 3.0))


def test_a_pcie_6_gpu_feeds_its_nic_faster_than_its_host():
    topology = Topology.build(cluster(1, of=node(gpu=gpu(pcie_generation=6))))
    port, switch, _ = topology.path(("gpu", 0, 0), ("host", 0))
    assert (port.bytes_per_s, switch.bytes_per_s) == (104 * GB, 60 * GB)
