"""Loads found in arrays are those found link by link; one link may stand for its likes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.link_numbers import Places
from raysim.hardware.maxmin import Loads
from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Topology
from raysim.kernel.simulation import Simulation

MIB = 1 << 20
NODES = [
    catalog.node("hgx-h100-8"),
    catalog.node("p3.16xlarge"),
    catalog.node("g5.48xlarge"),
    replace(catalog.node("gb200-nvl72"), nvlink_domain=8),
]
FABRICS = [
    FabricSpec(),
    FabricSpec(oversubscription=2.0),
    FabricSpec(kind="fat_tree", nodes_per_leaf=2),
    FabricSpec(kind="rail_fat_tree", nodes_per_leaf=3, oversubscription=2.0),
]


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    kinds = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=2))
    counts = [draw(st.integers(1, 5)) for _ in kinds]
    groups = tuple(
        NodeGroup(name=str(i), node=node, count=count)
        for i, (node, count) in enumerate(zip(kinds, counts, strict=True))
    )
    return ClusterSpec(groups=groups, fabric=draw(st.sampled_from(FABRICS)))


@st.composite
def groups_on(draw: st.DrawFn, topology: Topology) -> Places:
    """Groups of GPUs as jobs have them: so many nodes apart, or any."""
    specs = topology.specs
    gpus = [(n, i) for n, spec in enumerate(specs) for i in range(spec.gpu_count)]
    size = draw(st.integers(1, min(8, len(gpus))))
    count = draw(st.integers(1, len(gpus) // size))
    if draw(st.booleans()):
        order = np.array(draw(st.permutations(range(count * size))))
        return np.array(gpus)[order.reshape(count, size)]
    places = draw(st.integers(1, len(specs)))
    apart = draw(st.integers(1, max(1, len(specs) // places)))
    local = range(draw(st.integers(1, min(spec.gpu_count for spec in specs))))
    firsts = range(len(specs) - (places - 1) * apart)
    return np.array([
        [(first + k * apart, i) for k in range(places)] for first in firsts for i in local
    ])  # fmt: skip


def members(places: Places) -> list[list[tuple[int, int]]]:
    return [[(n, i) for n, i in group] for group in places.tolist()]


@given(data=st.data(), cluster=clusters())
@settings(max_examples=300)
def test_collectives_load_links_as_one_by_one(data: st.DataObject, cluster: ClusterSpec) -> None:
    topology = Topology.build(cluster)
    for _ in range(2):  # the second finds some of the first's groups alike
        places = data.draw(groups_on(topology))
        intra, inter = (data.draw(st.sampled_from([0.0, 0.3, 1.75])) for _ in range(2))
        expected = Loads(topology.sibling_loads(members(places), intra, inter).items())
        found = topology.numbers.loads(topology.numbers.ways([places], intra, inter))
        assert list(found.links.items()) == list(expected.links.items())
        assert found.scale == expected.scale


@given(data=st.data(), cluster=clusters())
@settings(max_examples=150)
def test_sends_load_links_as_one_by_one(data: st.DataObject, cluster: ClusterSpec) -> None:
    topology = Topology.build(cluster)
    pairs = data.draw(groups_on(topology).filter(lambda places: places.shape[1] > 1))[:, :2]
    expected: dict[str, float] = {}
    for source, target in members(pairs):
        for link in topology.path(("gpu", *source), ("gpu", *target)):
            expected[link.name] = expected.get(link.name, 0.0) + 1.0
    ways = topology.numbers.routes(pairs)
    found = dict(zip(map(topology.numbers.link, ways.numbers.tolist()), ways.bytes_on, strict=True))
    assert {link.name: load for link, load in found.items()} == expected


@given(data=st.data(), cluster=clusters())
@settings(max_examples=150)
def test_what_stands_for_its_likes_is_as_fast(data: st.DataObject, cluster: ClusterSpec) -> None:
    """Flows over all links, and over one of each that no call tells apart, end together."""
    topology = Topology.build(cluster)
    if data.draw(st.booleans()):
        topology.narrow(data.draw(st.integers(0, len(topology.specs) - 1)), 0, 0.4)
    numbers = topology.numbers
    every = [
        numbers.ways([data.draw(groups_on(topology))], *loads)
        for loads in data.draw(
            st.lists(st.sampled_from([(1.0, 0.0), (0.3, 1.75), (0.0, 1.0)]), min_size=1, max_size=5)
        )
    ]
    starts = [data.draw(st.integers(0, 3)) * 10_000 for _ in every]
    each = ends(topology, [numbers.loads(ways) for ways in every], starts)
    assert ends(topology, numbers.told_apart(every), starts) == each
    assert len(each) == len(every)


def ends(topology: Topology, loads: list[Loads], starts: list[int]) -> list[tuple[int, int]]:
    """Flows in the order in which they end, and when."""
    simulation, found = Simulation(), list[tuple[int, int]]()
    network = FlowNetwork(simulation, topology)

    def end(number: int) -> None:
        found.append((number, simulation.now_ns))

    def start(number: int) -> None:
        network.start(loads[number], MIB, latency_ns=1000, then=end, arg=number)

    for number, start_ns in enumerate(starts):
        simulation.call_at(start_ns, start, number)
    simulation.run()
    return found
