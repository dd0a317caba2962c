"""Compiled code finds the same rates and ends as Python, to the bit, whenever it takes over."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.hardware import network as networks
from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Link
from raysim.kernel.simulation import Simulation

pytest.importorskip("numba")

LINKS = 24
FLOWS = st.tuples(
    st.lists(st.tuples(st.integers(0, LINKS - 1), st.sampled_from([1.0, 1.0, 0.25, 1.75])),
             min_size=1, max_size=4),
    st.integers(1, 50), st.sampled_from([0, 0, 1_000, 10**8]),
    st.sampled_from([math.inf, math.inf, 1.5]),
)  # fmt: skip
STEPS = st.one_of(
    FLOWS, st.tuples(st.sampled_from(["cancel", "fail", "slow", "wait"]), st.integers(0, 10**6))
)


@pytest.fixture(autouse=True)
def _busy() -> Iterator[None]:
    before = networks.BUSY, networks.FEW
    yield
    networks.BUSY, networks.FEW = before


def played(first, steps, busy: float):
    """All that ends and when, rates on the way, the digest, and whether compiled code ran."""
    networks.BUSY, networks.FEW = busy, 0
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    links = [Link(f"l{k}", float(1 + k % 5)) for k in range(LINKS)]
    ended: list[tuple[int, int]] = []
    flows, rates = [], []

    def start(path, size, latency_ns, top):
        flows.append(net.start(
            [(links[k], load) for k, load in path], size, latency_ns=latency_ns,
            max_bytes_per_s=top, then=lambda i: ended.append((sim.now_ns, i)), arg=len(flows),
        ))  # fmt: skip

    for flow in first:
        start(*flow)
    for what, *rest in steps:
        if what == "cancel":
            net.cancel(flows[rest[0] % len(flows)])
        elif what == "fail":
            net.fail_link(links[rest[0] % LINKS])
            sim.clock.run(sim.now_ns + 10**9)
            net.restore(links[rest[0] % LINKS])
        elif what == "slow":
            net.set_bytes_per_s(links[rest[0] % LINKS], 0.5 + rest[0] % 3)
        elif what == "wait":
            sim.clock.run(sim.now_ns + 1 + rest[0] * 10**4)
        else:
            start(what, *rest)
        rates += [(f.rate, f.remaining, f.left(sim.now_ns)) for f in flows]
    sim.run()
    return ended, rates, sim.digest, net.uses(), type(net._shares).__name__


@given(st.lists(FLOWS, min_size=2, max_size=100), st.lists(STEPS, max_size=30),
       st.sampled_from([0, 0, 40, 300]))  # fmt: skip
@settings(deadline=None)
def test_compiled_code_finds_the_same_to_the_bit(first, steps, busy):
    python, compiled = played(first, steps, math.inf), played(first, steps, busy)
    assert python[:-2] == compiled[:-2]
    assert [(u.link.name, u.carried_bytes, u.busy_ns) for u in python[-2]] == [
        (u.link.name, u.carried_bytes, u.busy_ns) for u in compiled[-2]
    ]
    assert python[-1] == "Shares"


def test_it_takes_over_in_a_component_of_many_flows():
    first = [([(k % LINKS, 1.0), (k * 7 % LINKS, 1.0)], 1 + k % 13, k % 2 * 1_000, math.inf)
             for k in range(2_000)]  # fmt: skip
    python, compiled = played(first, [], math.inf), played(first, [], 10_000)
    assert python[:3] == compiled[:3]
    assert (python[-1], compiled[-1]) == ("Shares", "FlowTable")
