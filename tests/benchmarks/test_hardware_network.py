"""How fast rates are solved and collectives laid out; prints ratios, never gates.

Run with ``pytest -m benchmark -s tests/benchmarks``.
"""

from __future__ import annotations

from time import process_time

import numpy as np
import pytest

from raysim.hardware.maxmin import component, fill
from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Link, Topology
from raysim.kernel.simulation import Simulation
from tests.benchmarks.table import row
from tests.hardware_parts import cluster

pytestmark = pytest.mark.benchmark

DRAWS = 200_000


def in_pods(pods: int, per_pod: int, seconds: float = 1.0) -> tuple[FlowNetwork, float]:
    """Flows that start a new one when they end, over four of their pod's twenty links each."""
    sim = Simulation()
    network = FlowNetwork(sim)
    rng = np.random.default_rng(1)
    links = [[Link(f"{p}-{i}", 1e9) for i in range(2 * per_pod)] for p in range(pods)]

    def go(pod: int) -> None:
        path = [(links[pod][k], 1.0) for k in rng.permutation(2 * per_pod)[:4]]
        network.start(path, rng.uniform(0.5, 1.5) * 1e8, then=go, arg=pod)

    for pod in range(pods):
        for _ in range(per_pod):
            go(pod)
    sim.run(until=100_000_000)
    before, start = network.solves, process_time()
    while process_time() - start < seconds:
        sim.run(until=sim.now_ns + 5_000_000)
    return network, (network.solves - before) / (process_time() - start)


@pytest.mark.parametrize(("pods", "per_pod"), [(100, 10), (1000, 10), (25, 40)])
def test_solves_per_second(pods, per_pod):
    network, per_s = in_pods(pods, per_pod)
    flows = list(network.active)
    classes = dict.fromkeys(c for f in flows for c, _ in f.uses)
    start = process_time()
    component(classes, network.solves + 10**9)
    fill(flows, list(classes))
    whole_s = process_time() - start
    row("network, pods", f"{pods * per_pod:,} flows in {pods:,} pods, four links each", 1 / per_s,
        f"{per_s:,.0f} solves/s", per_s * whole_s, "solving everything each time")  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "flows", "among"),
    [(1_000, 1_000, 2), (1_000, 1_000, 8), (1_000, 1_000, 1_000), (10_000, 10_000, 8),
     (10_000, 10_000, 10_000)],
)  # fmt: skip
def test_churn(benchmark, hosts, flows, among):
    """Flows that start a new one to another host of their group when they end, over one switch.

    Random numbers are drawn beforehand; compiled code, where it pays, is loaded before the count.
    """
    sim = Simulation()
    network = FlowNetwork(sim, Topology.build(cluster(hosts, kind="star")))
    rng = np.random.default_rng(1)
    further = rng.integers(among - 1, size=DRAWS).tolist()
    sizes_bytes = rng.uniform(0.5e8, 1.5e8, size=DRAWS).tolist()
    ended = 0

    def go(i: int) -> None:
        nonlocal ended
        first, own = i % hosts // among * among, i % hosts
        to = first + (own - first + 1 + further[ended % DRAWS]) % among
        network.send(("host", own), ("host", to), sizes_bytes[ended % DRAWS], go, i)
        ended += 1

    def work(seconds: float) -> float:
        start = process_time()
        while process_time() - start < seconds:
            sim.run(until=sim.now_ns + 500_000)
        return process_time() - start

    for i in range(flows):
        go(i)
    work(3.0)
    before = ended
    spent_s = work(3.0)
    per_s = (ended - before) / spent_s
    row("network, churn", f"{flows:,} flows to random others of groups of {among:,}", spent_s,
        f"{per_s:,.0f} completions/s")  # fmt: skip
    benchmark.pedantic(lambda: None, rounds=1)


@pytest.mark.parametrize("gpus", [1024, 16384])
def test_laying_out_collectives(gpus):
    topology = Topology.build(cluster(gpus // 8, kind="rail_fat_tree"))
    members = [(n, i) for n in range(gpus // 8) for i in range(8)]
    start = process_time()
    topology.collective_loads(members, 1.75, 0.25)
    first_s = process_time() - start
    start = process_time()
    loads = topology.sibling_loads([members[i::8] for i in range(8)], 1.75, 0.25)
    again_s = process_time() - start
    sim = Simulation()
    network = FlowNetwork(sim, topology)
    start = process_time()
    network.start(loads.items(), 1e9, then=str)
    share_s = process_time() - start
    print(f"\n{gpus} GPUs: collective {first_s * 1e3:.1f} ms with making the links, siblings"
          f" {again_s * 1e3:.1f} ms, first start {share_s * 1e3:.1f} ms")  # fmt: skip
