"""Shares followed only as far as a change reaches are those of the whole solved anew."""

from __future__ import annotations

import math

import numpy as np
import pytest

from raysim.hardware import shares
from raysim.hardware.maxmin import Flow, Loads, Partition, component, fill
from raysim.hardware.network import FlowNetwork
from raysim.hardware.ripple import ripple
from raysim.hardware.topology import Link
from raysim.kernel.simulation import Simulation

LINKS = 40


def a_flow(rng: np.random.Generator, links: list[Link], index: int) -> Flow:
    path = rng.choice(LINKS, size=int(rng.integers(1, 5)), replace=False)
    weights = rng.choice([1.0, 1.0, 1.0, 2.0, 0.25], size=len(path))
    top = math.inf if rng.random() < 0.8 else float(rng.uniform(1e6, 3e8))
    loads = Loads((links[i], w) for i, w in zip(path, weights, strict=True))
    return Flow(index, loads, 1.0, top, 0, then=str, arg=None, failed=None)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("equal", [True, False])
def test_every_change_ends_as_the_whole_solved_anew(seed: int, equal: bool) -> None:
    rng = np.random.default_rng(seed)
    links = [Link(f"{i}", 1e9 if equal else float(rng.uniform(1e8, 2e9))) for i in range(LINKS)]
    partition, flows = Partition(), []
    reached = everybody = 0
    for step in range(400):
        if flows and rng.random() < (0.2 if step < 150 else 0.5):
            gone = flows.pop(int(rng.integers(len(flows))))
            seeds = partition.leave(gone, 0, 0.0)
        else:
            flows.append(a_flow(rng, links, step))
            partition.enter(flows[-1], 0)
            seeds = [c for c, _ in flows[-1].uses]
            if rng.random() < 0.1:
                seeds[0].capacity *= float(rng.choice([0.5, 2.0]))
        changed = ripple(seeds)
        reached, everybody = reached + len(changed), everybody + len(flows)
        for flow in changed:
            flow.rate = flow.share
        stops = [flow.stop for flow in flows]
        classes = dict.fromkeys(c for flow in flows for c, _ in flow.uses)
        fill(flows, list(classes))
        for flow, stop in zip(flows, stops, strict=True):
            assert flow.rate == pytest.approx(flow.share, rel=1e-9), f"step {step}, {flow.index}"
            flow.stop = stop
    assert reached < everybody  # not everybody, every time


def test_a_network_of_many_flows_ends_them_when_one_solved_whole_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ends(many: float) -> list[tuple[int, int]]:
        monkeypatch.setattr(shares, "MANY", many)
        sim = Simulation(check=True)
        network = FlowNetwork(sim)
        rng = np.random.default_rng(3)
        links = [Link(f"{i}", 1e9) for i in range(LINKS)]
        ended: list[tuple[int, int]] = []

        def go(index: int) -> None:
            path = [(links[k], 1.0) for k in rng.permutation(LINKS)[:2]]
            network.start(path, float(rng.uniform(0.5, 1.5) * 1e7), latency_ns=1_000,
                          then=over, arg=index)  # fmt: skip

        def over(index: int) -> None:
            ended.append((sim.now_ns, index))
            if len(ended) < 600:
                go(index)

        for index in range(150):
            go(index)
        sim.run()
        return ended

    whole, followed = ends(math.inf), ends(64)
    assert [index for _, index in whole] == [index for _, index in followed]
    apart_ns = [abs(a - b) for (a, _), (b, _) in zip(whole, followed, strict=True)]
    assert max(apart_ns) <= 2


def test_component_stops_at_the_limit() -> None:
    partition = Partition()
    link = Link("one", 1e9)
    loads = Loads([(link, 1.0)])
    flows = [Flow(i, loads, 1.0, math.inf, 0, then=str, arg=None, failed=None) for i in range(9)]
    for flow in flows:
        partition.enter(flow, 0)
    seeds = [c for c, _ in flows[0].uses]
    assert len(component(seeds, 1)[0]) == 9
    assert len(component(seeds, 2, 4)[0]) > 4
