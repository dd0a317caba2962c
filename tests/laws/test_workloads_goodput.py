"""Runs that fail: the lives played against Young's and Daly's formulas, and their bookkeeping."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysim.kernel.simulation import Simulation
from raysim.workloads.failures import (
    Failures,
    best_interval_s,
    daly_interval_s,
    expected_stretch_s,
    expected_work_s,
    young_interval_s,
)
from raysim.workloads.goodput import best_interval, expected_wall_s, measure
from raysim.workloads.long_run import PARTS, Course, Life, LongRun, Outage, Pace

S = 1_000_000_000
AT_ONCE = Failures(detect_s=0.0, replacement_s=0.0)
HOUR = 3600.0


def course(**options: object) -> Course:
    """Two days of 10 s steps, a save of 30 s every 10 min, a failure every 4 h; 60 s to restart."""
    usual = Course(
        steps=17_280,
        healthy_step_ns=10 * S,
        pace=Pace(step_ns=(10 * S,)),
        startup_ns=20 * S,
        load_ns=40 * S,
        save_every=60,
        stall_ns=30 * S,
        written_ns=30 * S,
        failures=AT_ONCE,
        mtbf_s=4 * HOUR,
    )
    return replace(usual, **options)  # type: ignore[arg-type]


def live(c: Course, number: int = 0, seed: int = 0) -> Life:
    return LongRun(c, Simulation(seed=seed), number).play()


def walls_s(c: Course, lives: int) -> list[float]:
    return [live(c, number).wall_ns / S for number in range(lives)]


def agrees(c: Course, lives: int) -> None:
    """The mean of lives and the closed form, within 4 standard errors."""
    walls = walls_s(c, lives)
    error = statistics.stdev(walls) / math.sqrt(lives)
    expected = expected_wall_s(c, c.save_every)
    assert error < 0.02 * expected, "too few lives to tell"
    assert abs(statistics.mean(walls) - expected) < 4 * error


# Closed forms among themselves.


@given(stall=st.floats(0.1, 600), mtbf_h=st.floats(0.5, 1e4))
def test_the_best_interval_is_where_expected_time_is_least(stall: float, mtbf_h: float) -> None:
    mtbf = mtbf_h * HOUR
    best = best_interval_s(stall, mtbf)

    def wall(interval: float) -> float:
        each = expected_stretch_s(interval + stall, mtbf, wait_s=0, restart_s=0)
        return each / interval

    assert wall(best) <= min(wall(0.9 * best), wall(1.1 * best))


@given(stall=st.floats(0.1, 600), mtbf_h=st.floats(1, 1e4))
def test_daly_and_young_approximate_it(stall: float, mtbf_h: float) -> None:
    mtbf = mtbf_h * HOUR
    best, x = best_interval_s(stall, mtbf), stall / (2 * mtbf)
    assert daly_interval_s(stall, mtbf) == pytest.approx(best, rel=0.002 + x)
    assert young_interval_s(stall, mtbf) == pytest.approx(best, rel=0.01 + math.sqrt(x))


def test_dalys_wall_time_is_the_stretch_without_a_wait() -> None:
    """Daly 2006, equation 13: M exp(R / M) (exp((t + d) / M) - 1) T / t."""
    mtbf, restart, interval, stall, work = 4 * HOUR, 300.0, 1800.0, 30.0, 36_000.0
    daly = mtbf * math.exp(restart / mtbf) * math.expm1((interval + stall) / mtbf) * work / interval
    found = expected_work_s(work, interval, stall, mtbf, wait_s=0.0, restart_s=restart)
    assert found == pytest.approx(daly, rel=1e-12)


@given(
    interval=st.floats(300, 3600),
    stall=st.floats(1, 60),
    wait=st.floats(0, 600),
    restart=st.floats(0, 600),
    mtbf_h=st.floats(100, 1e4),
)
def test_to_first_order_a_failure_costs_half_an_interval(
    interval: float, stall: float, wait: float, restart: float, mtbf_h: float
) -> None:
    """The usual estimate: d / t for saving, and (w + r + (t + d) / 2) / M for failing."""
    mtbf, work = mtbf_h * HOUR, 1000 * interval
    wall = expected_work_s(work, interval, stall, mtbf, wait_s=wait, restart_s=restart)
    each = interval + stall
    usual = each / interval * (1 + (wait + restart + each / 2) / mtbf)
    assert wall / work == pytest.approx(usual, abs=3 * ((each + wait + restart) / mtbf) ** 2)


def test_a_job_that_cannot_fail_takes_what_it_takes() -> None:
    assert expected_work_s(100.0, 10.0, 1.0, math.inf, wait_s=5.0, restart_s=5.0) == 110.0
    assert expected_stretch_s(1e9, 1.0, wait_s=0.0, restart_s=0.0) == math.inf


# Lives against the closed form.


def test_lives_take_what_daly_expects() -> None:
    agrees(course(steps=4320), 300)


def test_so_they_do_when_they_fail_while_restarting() -> None:
    agrees(course(steps=720, mtbf_s=0.5 * HOUR, load_ns=600 * S), 200)


def test_so_they_do_with_a_wait_for_a_node() -> None:
    agrees(course(steps=4320, failures=Failures(detect_s=120.0, replacement_s=1800.0)), 300)


@pytest.mark.parametrize("spares", [1, 2])
def test_and_with_spare_nodes(spares: int) -> None:
    how = Failures(detect_s=30.0, replacement_s=2 * HOUR, spare_nodes=spares)
    agrees(course(steps=4320, failures=how), 300)


def test_and_when_some_failures_leave_the_node() -> None:
    how = Failures(detect_s=60.0, replacement_s=HOUR, takes_node=0.25)
    agrees(course(steps=4320, failures=how), 300)


def test_and_when_a_save_is_written_behind_the_steps() -> None:
    agrees(course(steps=4320, stall_ns=3 * S, written_ns=200 * S), 300)


def test_the_best_interval_is_the_best_of_those_played() -> None:
    """Brute force over intervals, the same failures for each; the minimum is flat."""
    c = course(steps=8640, stall_ns=60 * S, written_ns=60 * S)
    best = best_interval(c)
    assert best is not None
    grid = [round(best.steps * f) for f in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)]
    mean = {n: statistics.mean(walls_s(replace(c, save_every=n), 40)) for n in grid}
    winner = min(mean, key=lambda n: mean[n])
    assert 0.5 * best.steps <= winner <= 2 * best.steps
    assert mean[best.steps] <= 1.005 * mean[winner]
    assert mean[grid[0]] > 1.02 * mean[best.steps] < mean[grid[-1]]


# Bookkeeping.

COURSES = st.builds(
    lambda steps, mtbf_h, every, stall, behind, detect, replace_h, spares, slow, outage, epoch: (
        course(
            steps=steps,
            mtbf_s=mtbf_h * HOUR,
            save_every=every,
            stall_ns=stall * S,
            written_ns=(stall + behind) * S,
            pace=Pace(step_ns=(10 * S, slow * S), changes_ns=(steps * S,)),
            outages=(Outage(begin_ns=steps * S, end_ns=(steps + outage) * S, patience_ns=34 * S),),
            evaluation_ns=25 * S,
            steps_per_epoch=epoch,
            failures=Failures(
                detect_s=detect, replacement_s=replace_h * HOUR, spare_nodes=spares, takes_node=0.5
            ),
        )
    ),
    steps=st.integers(1, 2000),
    mtbf_h=st.floats(0.3, 50),
    every=st.integers(1, 100),
    stall=st.integers(0, 60),
    behind=st.integers(0, 300),
    detect=st.sampled_from([0.0, 30.0]),
    replace_h=st.floats(0, 2),
    spares=st.integers(0, 2),
    slow=st.integers(10, 15),
    outage=st.integers(1, 200),
    epoch=st.sampled_from([None, 50]),
)


@settings(deadline=None, max_examples=40)
@given(c=COURSES, seed=st.integers(0, 3))
def test_every_nanosecond_has_one_part(c: Course, seed: int) -> None:
    simulation = Simulation(seed=seed)
    life = LongRun(c, simulation).play()
    assert set(life.parts_ns) == set(PARTS)
    assert min(life.parts_ns.values()) >= 0
    assert life.wall_ns == simulation.now_ns
    assert life.finished
    assert life.parts_ns["kept"] == c.steps * c.healthy_step_ns
    assert 0.0 <= life.goodput <= 1.0
    assert sum(stop.lost_ns for stop in life.stops) == life.parts_ns["lost"]
    down = sum(stop.down_ns for stop in life.stops)
    away = sum(life.parts_ns[part] for part in ("detection", "waiting", "restart"))
    assert away <= down <= away + life.parts_ns["link_down"] + life.parts_ns["startup"]
    assert live(c, seed=seed) == life


@settings(deadline=None, max_examples=40)
@given(c=COURSES, seed=st.integers(0, 3))
def test_cycles_at_once_are_cycles_one_by_one(c: Course, seed: int) -> None:
    class OneByOne(LongRun):
        def _cycles(self) -> Iterator[Any]:  # type: ignore[override]
            yield from ()

    c = replace(c, evaluation_ns=0, mtbf_s=20 * c.mtbf_s)
    assert c.stops == [c.save_every]
    assert LongRun(c, Simulation(seed=seed)).play() == OneByOne(c, Simulation(seed=seed)).play()


def test_without_failures_the_wall_time_is_the_sum_by_hand() -> None:
    life = live(course(mtbf_s=math.inf, steps=600, steps_per_epoch=200, evaluation_ns=7 * S))
    assert life.parts_ns == dict.fromkeys(PARTS, 0) | {
        "kept": 6000 * S, "startup": 20 * S, "evaluation": 21 * S, "checkpoints": 300 * S,
    }  # fmt: skip
    assert (life.failures, life.saves) == (0, 10)


def test_a_failure_at_a_known_time_costs_what_it_costs() -> None:
    """Step 60 ends at 620 s, its save at 650 s; at 1,000 s 350 s of work are gone."""
    how = Failures(times_s=(1000.0,), detect_s=30.0, replacement_s=600.0, warm_up_s=5.0)
    life = live(course(mtbf_s=math.inf, steps=120, failures=how))
    (stop,) = life.stops
    assert (stop.at_ns // S, stop.why, stop.lost_ns // S, stop.down_ns // S) == (
        1000, "node", 350, 665,
    )  # fmt: skip
    assert {k: v // S for k, v in life.parts_ns.items() if v} == {
        "startup": 20, "kept": 1200, "checkpoints": 60, "lost": 350, "detection": 30,
        "waiting": 570, "restart": 65,
    }  # fmt: skip


def test_what_was_still_being_written_is_lost_with_the_rest() -> None:
    how = replace(AT_ONCE, times_s=(700.0,))
    known = course(mtbf_s=math.inf, steps=120, failures=how)
    assert live(known).parts_ns["lost"] == 50 * S
    assert live(replace(known, written_ns=100 * S)).parts_ns["lost"] == 680 * S


def test_a_link_down_is_waited_for_until_patience_ends() -> None:
    flap = Outage(begin_ns=100 * S, end_ns=120 * S, patience_ns=34 * S)
    quiet = course(mtbf_s=math.inf, steps=120)
    life = live(replace(quiet, outages=(flap,)))
    assert (life.failures, life.parts_ns["link_down"]) == (0, 20 * S)
    assert life.wall_ns == live(quiet).wall_ns + 20 * S
    life = live(replace(quiet, outages=(replace(flap, end_ns=400 * S),)))
    assert (life.failures, life.parts_ns["link_down"]) == (1, 34 * S)
    assert life.parts_ns["lost"] == 80 * S
    assert life.parts_ns["waiting"] == (400 - 134) * S


def test_a_slow_stretch_is_told_from_kept_steps() -> None:
    """From 1,020 s on steps take 15 s: 100 of the 150 come before."""
    slow = Pace(step_ns=(10 * S, 15 * S), changes_ns=(1020 * S,))
    life = live(course(mtbf_s=math.inf, steps=150, save_every=None, pace=slow))
    assert life.parts_ns["kept"] == 1500 * S
    assert life.parts_ns["slow"] == 50 * 5 * S


@pytest.mark.parametrize("factor", [2, 8])
def test_more_failures_leave_less(factor: int) -> None:
    usual, worse = (measure(course(steps=4320, mtbf_s=m * HOUR), 0) for m in (4, 4 / factor))
    assert worse.goodput < usual.goodput
    assert worse.failures > usual.failures


def test_a_job_that_never_gets_to_a_save_is_given_up() -> None:
    hopeless = measure(course(save_every=None, mtbf_s=60.0, steps=10_000), 0)
    assert not hopeless.finished
    assert hopeless.goodput == 0.0


def test_one_seed_one_result() -> None:
    c = course(steps=2000)
    assert measure(c, 1) == measure(c, 1)
    assert measure(c, 1).wall_s != measure(c, 2).wall_s
    assert len({life.wall_ns for life in measure(c, 1).lives}) > 1
