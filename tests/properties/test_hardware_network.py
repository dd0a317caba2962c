"""What must hold of any set of transfers: feasible, max-min fair, conserving, order-free."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from raysim.hardware.maxmin import Flow
from raysim.hardware.network import FlowNetwork
from raysim.hardware.topology import Link
from raysim.kernel.simulation import Simulation

CAPACITIES = st.sampled_from([1.0, 2.0, 3.0, 10.0, 100.0])
LOADS = st.sampled_from([0.125, 0.5, 1.0, 1.0, 1.0, 1.75])


@st.composite
def instances(draw):
    """(capacities, flows): each flow a dict of link index to load, and a limit."""
    capacities = draw(st.lists(CAPACITIES, min_size=1, max_size=6))
    index = st.integers(0, len(capacities) - 1)
    flow = st.tuples(
        st.dictionaries(index, LOADS, min_size=1, max_size=4),
        st.sampled_from([math.inf, math.inf, 0.25, 1.0, 5.0]),
    )
    return capacities, draw(st.lists(flow, min_size=1, max_size=10))


def progressive_filling(capacities, flows):
    """The textbook algorithm in exact fractions, one round per bottleneck, on links as they are."""
    caps = [Fraction(c) for c in capacities]
    unit = []
    for loads, _ in flows:
        tightest = max(loads, key=lambda k, w=loads: (Fraction(w[k]) / caps[k], w[k]))
        unit.append({k: Fraction(w) / Fraction(loads[tightest]) for k, w in loads.items()})
    pairs = zip(flows, unit, strict=True)
    scale = [Fraction(max(loads[k] / u[k] for k in loads)) for (loads, _), u in pairs]
    level = [None] * len(flows)
    while None in level:
        bounds = []
        for k, cap in enumerate(caps):
            used = sum(level[f] * u.get(k, 0) for f, u in enumerate(unit) if level[f] is not None)
            weight = sum(u.get(k, 0) for f, u in enumerate(unit) if level[f] is None)
            if weight:
                bounds.append(((cap - used) / weight, "link", k))
        for f, (_, limit) in enumerate(flows):
            if level[f] is None and limit < math.inf:
                bounds.append((Fraction(limit) * scale[f], "flow", f))
        x, what, which = min(bounds)
        for f, u in enumerate(unit):
            if level[f] is None and (which in u if what == "link" else which == f):
                level[f] = x
    return [float(x / s) for x, s in zip(level, scale, strict=True)]


def start_all(capacities, flows, size=1e9):
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    links = [Link(f"l{k}", c) for k, c in enumerate(capacities)]
    started = [
        net.start(
            [(links[k], w) for k, w in loads.items()], size, max_bytes_per_s=limit, then=print
        )
        for loads, limit in flows
    ]
    return sim, net, links, started


def certificate(links: list[Link], flows: list[Flow]) -> None:
    """Feasible, and every flow is at its limit or has a full link on which none is above it."""
    load = dict.fromkeys(links, 0.0)
    for flow in flows:
        for link, w in flow.loads.links.items():
            load[link] += w * flow.rate
    for link in links:
        assert load[link] <= link.bytes_per_s * (1 + 1e-9)
    for flow in flows:
        if flow.rate >= flow.top * (1 - 1e-9):
            continue
        assert any(
            load[link] >= link.bytes_per_s * (1 - 1e-9)
            and all(
                other.rate <= flow.rate * (1 + 1e-9)
                for other in flows if link in other.loads.links
            )
            for link in flow.loads.links
        ), f"flow {flow.index} has no bottleneck"  # fmt: skip


@given(instances())
def test_solution_is_feasible_fair_and_that_of_the_textbook(instance):
    capacities, flows = instance
    sim, _, links, started = start_all(capacities, flows)
    sim.run(until=1)
    certificate(links, started)
    got = [flow.bytes_per_s for flow in started]
    assert got == pytest.approx(progressive_filling(capacities, flows), rel=1e-9)


@given(instances(), st.randoms(use_true_random=False))
def test_order_of_arrival_does_not_matter(instance, random):
    capacities, flows = instance
    order = list(range(len(flows)))
    random.shuffle(order)
    sim, _, _, started = start_all(capacities, flows)
    sim.run(until=1)
    sim2, _, _, shuffled = start_all(capacities, [flows[k] for k in order])
    sim2.run(until=1)
    for position, k in enumerate(order):
        assert shuffled[position].rate == pytest.approx(started[k].rate, rel=1e-9)


@given(instances(), st.lists(st.integers(1, 40), min_size=10, max_size=10))
def test_bytes_in_are_bytes_out_and_no_flow_beats_its_own_links(instance, sizes):
    capacities, flows = instance
    sim = Simulation(check=True)
    net = FlowNetwork(sim)
    links = [Link(f"l{k}", c) for k, c in enumerate(capacities)]
    ends = {}
    expected = dict.fromkeys(links, 0.0)
    for f, ((loads, limit), size) in enumerate(zip(flows, sizes, strict=False)):
        for k, w in loads.items():
            expected[links[k]] += w * size
        net.start(
            [(links[k], w) for k, w in loads.items()], size, latency_ns=f % 3 * 10**9,
            max_bytes_per_s=limit, then=lambda f: ends.setdefault(f, sim.now_ns), arg=f,
        )  # fmt: skip
    sim.run()
    assert len(ends) == len(flows)
    for link, carried_bytes, busy_ns in net.uses():
        assert carried_bytes == pytest.approx(expected[link], rel=1e-9)
        assert carried_bytes <= link.bytes_per_s * (busy_ns + 2 * len(flows)) * 1e-9 * (1 + 1e-9)
    for f, ((loads, limit), size) in enumerate(zip(flows, sizes, strict=False)):
        alone_s = max([size / limit, *(w * size / links[k].bytes_per_s for k, w in loads.items())])
        assert ends[f] * 1e-9 >= f % 3 + alone_s - 4e-9 * len(flows)


class Transfers(RuleBasedStateMachine):
    """Start, cancel, cut, restore, wait: after each, rates are those of a fresh network."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(check=True)
        self.net = FlowNetwork(self.sim)
        self.links = [Link(f"l{k}", float(c)) for k, c in enumerate((1, 1, 2, 3, 5, 8, 8, 13))]
        self.down: dict[int, str | None] = {}
        self.flows: list[Flow] = []
        self.ended: list[Flow] = []

    def _settle(self) -> None:
        """Let what is due in this instant happen."""
        self.sim.clock.run(self.sim.now_ns + 1)

    @rule(
        loads=st.dictionaries(st.integers(0, 7), LOADS, min_size=1, max_size=5),
        size=st.integers(0, 50),
        latency_ns=st.sampled_from([0, 0, 10**8, 10**9]),
        limit=st.sampled_from([math.inf, 1.0, 4.0]),
    )
    def start(self, loads, size, latency_ns, limit):
        slot: list[Flow] = []
        flow = self.net.start(
            [(self.links[k], w) for k, w in loads.items()], size, latency_ns=latency_ns,
            max_bytes_per_s=limit, then=lambda _: self.ended.append(slot[0]),
            failed=lambda _, cause: self.ended.append(slot[0]),
        )  # fmt: skip
        slot.append(flow)
        self.flows.append(flow)
        self._settle()

    @precondition(lambda self: self.flows)
    @rule(pick=st.integers(0, 10**6))
    def cancel(self, pick):
        self.net.cancel(self.flows[pick % len(self.flows)])
        self._settle()

    @rule(k=st.integers(0, 7), cause=st.sampled_from([None, "cut"]))
    def fail(self, k, cause):
        self.net.fail_link(self.links[k], cause)
        self.down[k] = cause
        self._settle()

    @rule(k=st.integers(0, 7))
    def restore(self, k):
        self.net.restore(self.links[k])
        self.down.pop(k, None)
        self._settle()

    @rule(ms=st.integers(1, 5000))
    def wait(self, ms):
        self.sim.clock.run(self.sim.now_ns + ms * 10**6)

    @invariant()
    def rates_are_those_from_scratch(self):
        now_ns = self.sim.now_ns
        running = [f for f in self.net.active if f.since_ns <= now_ns]
        fresh_sim = Simulation()
        fresh = FlowNetwork(fresh_sim)
        for k in self.down:
            fresh.fail_link(self.links[k])
        again = [
            fresh.start(
                [(link, w * flow.loads.scale) for link, w in flow.loads.links.items()], 1e12,
                max_bytes_per_s=flow.top / flow.loads.scale, then=print,
            )
            for flow in running
        ]  # fmt: skip
        fresh_sim.clock.run(1)
        for old, new in zip(running, again, strict=True):
            assert old.rate == pytest.approx(new.rate, rel=1e-9)

    @invariant()
    def every_flow_is_accounted_for(self):
        assert len(self.ended) == len(set(self.ended))
        for flow in self.flows:
            assert (flow.state in {"done", "failed"}) == (flow in self.ended)
            assert (flow.state == "active") == (flow in self.net.active)
        for use in self.net.uses():
            load = [
                (f.loads.links[use.link], f.size - f.left(self.sim.now_ns))
                for f in self.flows if use.link in f.loads.links and f.size
            ]  # fmt: skip
            assert use.carried_bytes == pytest.approx(sum(w * s for w, s in load), abs=1e-6)

    def teardown(self):
        for k in list(self.down):
            self.net.restore(self.links[k])
        self.sim.run()
        assert not self.net.active
        assert all(f.state in {"done", "failed", "cancelled"} for f in self.flows)


TestTransfers = Transfers.TestCase
TestTransfers.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
