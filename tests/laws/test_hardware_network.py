"""Max-min fair sharing and what it moves, against closed forms worked out above each case."""

from __future__ import annotations

import pytest

from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Link, Topology
from raysim.kernel.simulation import Simulation
from tests.hardware_parts import GB, cluster, node

S = 1_000_000_000


def rates(*flows, **limits):
    """Rates of flows given as (name, {link: load}); ``limits`` caps some by name."""
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    started = {
        name: net.start(
            loads.items(), 1e6, max_bytes_per_s=limits.get(name, float("inf")), then=print
        )
        for name, loads in flows
    }
    sim.run(until=1)
    return {name: flow.bytes_per_s for name, flow in started.items()}


def test_linear_network():
    # Three links of capacity 1, one flow over all of them and one on each.
    # Level x: every link carries 2x <= 1, so x = 1/2 for all four, and nothing is left.
    links = [Link(f"l{k}", 1.0) for k in range(3)]
    flows = [("long", dict.fromkeys(links, 1.0))]
    flows += [(f"short{k}", {link: 1.0}) for k, link in enumerate(links)]
    assert rates(*flows) == dict.fromkeys(["long", "short0", "short1", "short2"], 0.5)


def test_linear_network_of_unequal_links():
    # Capacities 1, 2; flow "both" over both, "one" on the first, "two" on the second.
    # First link: 2x = 1, x = 1/2 stops "both" and "one"; the second has 2 - 1/2 for "two".
    first, second = Link("first", 1.0), Link("second", 2.0)
    assert rates(
        ("both", {first: 1.0, second: 1.0}), ("one", {first: 1.0}), ("two", {second: 1.0})
    ) == {"both": 0.5, "one": 0.5, "two": 1.5}


def test_several_bottlenecks_in_turn():
    # Bertsekas and Gallager's order of filling: links A 1, B 2, C 6.
    # f1: A;  f2: A B;  f3: B C;  f4: C.   A: 2x = 1 -> f1 = f2 = 1/2.
    # B: 1/2 + x = 2 -> f3 = 3/2.          C: 3/2 + x = 6 -> f4 = 9/2.
    a, b, c = Link("a", 1.0), Link("b", 2.0), Link("c", 6.0)
    assert rates(
        ("f1", {a: 1.0}), ("f2", {a: 1.0, b: 1.0}), ("f3", {b: 1.0, c: 1.0}), ("f4", {c: 1.0})
    ) == {"f1": 0.5, "f2": 0.5, "f3": 1.5, "f4": 4.5}


def test_a_capped_flow_leaves_its_rest_to_the_others():
    # Capacity 12, three flows, one capped at 2: (12 - 2) / 2 = 5 each for the others.
    wire = Link("wire", 12.0)
    flows = [(name, {wire: 1.0}) for name in "abc"]
    assert rates(*flows, a=2.0) == {"a": 2.0, "b": 5.0, "c": 5.0}
    # A cap above the fair share changes nothing.
    assert rates(*flows, a=7.0) == dict.fromkeys("abc", 4.0)


def test_loads_weigh_what_a_flow_takes():
    # Link of 6. "plain" puts 1 byte per byte, "double" 2 per byte of its size.
    # Equal bytes on the link they share: 3 each; in bytes of size 3 and 3 / 2.
    wire = Link("wire", 6.0)
    assert rates(("plain", {wire: 1.0}), ("double", {wire: 2.0})) == {"plain": 3.0, "double": 1.5}
    # A flow that uses the shared link at a quarter of its own bottleneck (loads 1 and 1/4 on equal
    # links of 8) is measured at that bottleneck: x + x / 4 ... the shared link: x/4 + y = 8 with
    # x = y would be 6.4 each, which its own link (8) allows.
    own, shared = Link("own", 8.0), Link("shared", 8.0)
    assert rates(("wide", {own: 1.0, shared: 0.25}), ("plain", {shared: 1.0})) == pytest.approx(
        {"wide": 6.4, "plain": 6.4}
    )


def test_transfers_are_pipelined_not_stored_and_forwarded():
    # 10 bytes over k links of 1, 2 and 5 bytes/s, 0.1 s each: latency 0.3 s, then the narrowest
    # link alone sets the time: 10 s. Store and forward would take 10 + 5 + 2 s.
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    links = [Link(f"l{k}", rate, 0.1) for k, rate in enumerate((1.0, 2.0, 5.0))]
    ends = []
    net.start(
        [(x, 1.0) for x in links], 10.0, latency_ns=S * 3 // 10, then=ends.append, arg="through"
    )
    sim.run()
    assert (sim.now_ns / S, ends) == (pytest.approx(10.3), ["through"])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_ring_all_reduce_moves_two_n_minus_one_over_n(ranks):
    # Each rank sends and receives 2 (n - 1) / n of the buffer; at B bytes/s per port that takes
    # 2 (n - 1) / n * size / B, and n ports carry 2 (n - 1) * size in all, each way.
    topology = Topology.build(cluster(1, of=node()))
    size_bytes = 1e9
    per_rank = 2 * (ranks - 1) / ranks * size_bytes
    loads = topology.collective_loads([(0, i) for i in range(ranks)], per_rank, 0.0)
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    ends = []
    net.start(loads.items(), 1.0, then=lambda _: ends.append(sim.now_ns / S))
    sim.run()
    port = 400 * GB
    assert ends == [pytest.approx(per_rank / port)]
    sent = sum(u.carried_bytes for u in net.uses() if u.link.name.endswith("out"))
    assert sent == pytest.approx(2 * (ranks - 1) * size_bytes)


def test_two_communicators_on_the_same_links_take_turns_by_halves():
    # Two equal collectives at once take twice the time of one, and end together.
    topology = Topology.build(cluster(2, kind="rail_fat_tree"))
    members = [(n, i) for n in range(2) for i in range(8)]
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    loads = topology.collective_loads(members, 1.75e9, 8e9)
    ends = []
    for name in ("dp", "tp"):
        net.start(loads.items(), 1.0, then=lambda a: ends.append((sim.now_ns / S, a)), arg=name)
    sim.run()
    alone = 1e9 / (50 * GB)  # 8 GB over 8 NICs of 50 GB/s; NVLink needs 4.4 ms
    assert ends == [(pytest.approx(2 * alone), "dp"), (pytest.approx(2 * alone), "tp")]
