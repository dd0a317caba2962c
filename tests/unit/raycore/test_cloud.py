"""The cloud: phases, what is out of stock, machines given back while they boot."""

from __future__ import annotations

import math

import pytest

from raysim.kernel.simulation import Simulation
from raysim.raycore.cloud import (
    COLD_GPU_POD,
    NOTHING,
    PHASES,
    WARM_POD,
    Cloud,
    CloudSpec,
    Delay,
    NodeStart,
    Stockout,
)

PLAIN = NodeStart(
    request=Delay(median_s=2), provision=Delay(median_s=50), image_pull=Delay(median_s=8),
    ray_install=Delay(median_s=30), ray_start=Delay(median_s=5),
)  # fmt: skip


class Case:
    """A cloud of three machines of type ``a``, and what happened when."""

    def __init__(self, seed: int = 0, **spec: object) -> None:
        self.sim = Simulation(seed=seed)
        self.seen: list[tuple[float, str, int | None]] = []
        self.cloud = Cloud(
            self.sim, {1: "a", 2: "a", 3: "a"}, ["head", "a", "a", "a"],
            CloudSpec(**{"starts": {"a": PLAIN}, **spec}),  # type: ignore[arg-type]
            start=lambda n: self.note("up", n), stop=lambda n: self.note("down", n),
        )  # fmt: skip

    def note(self, what: str, node_id: int | None) -> None:
        self.seen.append((self.sim.now_ns / 1e9, what, node_id))

    def launch(self, at_s: float = 0) -> None:
        self.sim.at(
            int(at_s * 1e9), lambda: self.cloud.launch("a", lambda n: self.note("listed", n))
        )


def test_a_machine_goes_through_its_phases() -> None:
    case = Case()
    case.launch()
    case.sim.run("51.9s")
    assert (case.cloud.runs(1), case.cloud.machines()) == (False, {0: "head", 1: "a"})
    case.sim.run("52.1s")
    assert case.cloud.runs(1)
    case.sim.run("200s")
    assert case.seen == [(2, "listed", 1), (95, "up", 1)]
    (launch,) = case.cloud.launches
    assert [launch.phases_ns[name] / 1e9 for name in PHASES] == [2, 50, 8, 30, 5]
    assert launch.up_ns == 95e9


def test_there_are_only_so_many() -> None:
    case = Case()
    for _ in range(4):
        case.launch()
    case.sim.run("5s")
    assert [(what, n) for _, what, n in case.seen] == [
        ("listed", 1), ("listed", 2), ("listed", 3), ("listed", None),
    ]  # fmt: skip


def test_one_given_back_while_it_boots_never_comes_and_can_be_had_again() -> None:
    case = Case()
    case.launch()
    case.sim.at("10s", case.cloud.terminate, 1)
    for _ in range(3):
        case.launch(20)
    case.sim.run("300s")
    assert (10, "down", 1) in case.seen
    assert [(t, n) for t, what, n in case.seen if what == "up"] == [(115, 2), (115, 3), (115, 1)]


@pytest.mark.parametrize(
    ("pods", "seen"),
    [
        (False, [(12, "listed", None)]),
        (True, [(12, "listed", 1), (193, "up", 1)]),  # 100 s: it has a machine 50 s later
    ],
)
def test_out_of_stock_a_vm_is_refused_and_a_pod_waits(
    pods: bool, seen: list[tuple[float, str, int | None]]
) -> None:
    case = Case(pods=pods, stockouts=(Stockout(node_type="a", from_s=5, until_s=100),))
    case.launch(10)
    case.sim.run("1h")
    assert case.seen == seen


def test_a_pod_out_of_stock_for_ever_is_no_event() -> None:
    case = Case(pods=True, stockouts=(Stockout(node_type="a"),))
    case.launch()
    case.sim.run()
    assert case.sim.now_ns == 2e9
    case.cloud.terminate(1)
    assert 1 in case.cloud.off


def test_a_changed_phase_leaves_the_others_as_they_were() -> None:
    spread = NodeStart(provision=Delay.between(60, 180), image_pull=Delay.between(20, 60))
    without = NodeStart(provision=Delay.between(60, 180), image_pull=NOTHING)
    phases = []
    for start in (spread, without):
        case = Case(seed=3, starts={"a": start})
        case.launch()
        case.sim.run("1h")
        phases.append(case.cloud.launches[0].phases_ns)
    assert phases[0]["provision"] == phases[1]["provision"]
    assert phases[0]["ray_start"] == phases[1]["ray_start"]
    assert phases[1]["image_pull"] == 0 != phases[0]["image_pull"]


def test_nine_of_ten_lie_between() -> None:
    delay, sim = Delay.between(60, 180), Simulation(seed=1)
    drawn = [
        delay.median_s * math.exp(delay.sigma * z) for z in sim.rng("x").standard_normal(20_000)
    ]
    inside = sum(60 <= s <= 180 for s in drawn) / len(drawn)
    assert inside == pytest.approx(0.9, abs=0.01)


def test_gpu_images_take_minutes_and_warm_pods_seconds() -> None:
    cold = sum(getattr(COLD_GPU_POD, name).median_s for name in PHASES)
    warm = sum(getattr(WARM_POD, name).median_s for name in PHASES)
    assert 5 * 60 < cold < 7 * 60
    assert warm < 15
