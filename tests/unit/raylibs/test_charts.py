"""What libraries keep for pages: the charts add up to what the jobs report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raysim
from raysim.raylibs.charts import Chart, Line, against, edges, percentiles, rates, steps, under_way
from raysim.raylibs.data.over_time import charts_of as of_data
from raysim.raylibs.train.job import SAYS
from raysim.raylibs.train.over_time import charts_of as of_training
from raysim.results.result import Result
from raysim.scenario.load import from_mapping
from tests.train_parts import play
from tests.unit.raylibs.data import parts


def area(line: Line) -> float:
    """Of a step function, or under its joined points."""
    pairs = zip(line.points, line.points[1:], strict=False)
    return sum((b - a) * (v if line.steps else (v + w) / 2) for (a, v), (b, w) in pairs)


def by_key(charts: tuple[Chart, ...]) -> dict[str, Chart]:
    return {chart.key: chart for chart in charts}


def ran(**job: Any) -> tuple[Result, dict[str, Chart]]:
    """A job on two nodes, and its charts."""
    cluster = {"node": "m5.2xlarge", "nodes": 2}
    result = raysim.run(from_mapping({"name": "j", "cluster": cluster, "jobs": [job]}))
    assert result.program is not None
    return result, by_key(result.program.charts[0])


def test_rates_add_up_to_what_happened() -> None:
    when = np.array([0.1, 0.2, 5.0, 9.9])
    line = rates("sent", when, edges(0.0, 10.0, 20))
    assert sum(v for _, v in line.points) * 0.5 == pytest.approx(4)


def test_percentiles_are_numpys_of_each_window() -> None:
    when, values = np.array([0.1, 0.2, 0.3, 7.0]), np.array([1.0, 2.0, 3.0, 9.0])
    p50, _, p99 = percentiles(when, values, edges(0.0, 10.0, 10))
    assert p50.points == ((0.5, 2.0), (7.5, 9.0))
    assert p99.points[0][1] == pytest.approx(np.percentile([1, 2, 3], 99))


def test_what_is_under_way_is_littles_law() -> None:
    begins, ends = np.array([0.0, 1.0, 4.0]), np.array([3.0, 2.0, 10.0])
    line = under_way("n", begins, ends, edges(0.0, 10.0, 50))
    assert sum(v for _, v in line.points) * 0.2 == pytest.approx((ends - begins).sum())


def test_one_quantity_against_another() -> None:
    latency = steps("p50", [(0.5, 1.0), (2.5, 3.0)])
    (line,) = against([(0.5, 10.0), (1.5, 20.0), (2.5, 30.0)], [latency])
    assert line.points == ((10.0, 1.0), (30.0, 3.0))


def serve(**more: Any) -> tuple[Result, dict[str, Chart]]:
    model = {"name": "model", "num_replicas": 2, "work": {"wait": "100ms"}}
    load = {"rate": "10/s", "lasting": "30s"}
    return ran(serve={"deployments": [model], "load": load, **more})


@pytest.mark.parametrize("fidelity", ["requests", "flow"])
def test_a_load_over_time_is_the_load(fidelity: str) -> None:
    result, charts = serve(fidelity=fidelity)
    metrics = result.summary["libraries"][0]["metrics"]
    sent, answered = (charts["requests"].lines[k] for k in (0, 1))
    mean = sum(v for _, v in answered.points) / len(answered.points)
    assert mean == pytest.approx(metrics["requests_per_s"], rel=0.05)
    assert sum(v for _, v in sent.points) / len(sent.points) == pytest.approx(mean, rel=0.05)
    p50 = [v for _, v in charts["latency"].lines[0].points]
    assert np.median(p50) == pytest.approx(metrics["latency_p50"], rel=0.05)
    (running,) = charts["replicas"].lines
    assert {v for _, v in running.points} == {2.0}


def test_operators_rows_over_time_are_all_rows() -> None:
    outcome = parts.played(parts.cluster(), parts.data(6_400, parts.work(0.002)))
    charts = by_key(of_data(outcome.executions))
    (line,) = charts["rows"].lines
    windows = [t for t, _ in line.points]
    rows = sum(v for _, v in line.points) * (windows[1] - windows[0])
    assert rows == pytest.approx(6_400, rel=0.1)  # what came with the very last step is not seen
    assert {bar.state for bar in charts["backpressure"].bars} == {"no CPUs or GPUs left for it"}
    assert max(v for _, v in charts["tasks"].lines[0].points) <= 9


def test_bars_of_training_are_its_parts() -> None:
    played = play()
    charts = by_key(of_training(played.record, SAYS))
    kept_s = sum(b.to_s - b.from_s for b in charts["phases"].bars if b.state == SAYS["steps"])
    assert kept_s == pytest.approx(played.parts_s()["steps"], rel=1e-6)
    assert charts["goodput"].lines[0].points[-1][1] == pytest.approx(played.record.goodput)
    assert charts["steps"].lines[0].points[-1][1] == played.record.kept_steps()
    assert area(charts["steps-per-s"].lines[0]) == pytest.approx(
        played.record.kept_steps(), rel=0.1
    )


def test_trials_are_bars_and_their_metric_is_kept() -> None:
    trial = {"iterations": 9, "iteration": "1s", "resources": {"CPU": 4}}
    result, charts = ran(
        tune={"trials": 8, "trial": trial, "scheduler": "asha", "settings": {"max_t": 9}}
    )
    bars, best = charts["trials"].bars, charts["metric"].lines[0]
    metrics = result.summary["libraries"][0]["metrics"]
    held_s = sum(bar.to_s - bar.from_s for bar in bars)
    assert held_s / 3600 == pytest.approx(metrics["trial_hours"])
    assert {bar.row for bar in bars} == {line.name for line in charts["metric"].lines[1:]}
    assert best.points[-1][1] == pytest.approx(metrics["best_loss"], rel=1e-3)
    at_once = max(sum(b.from_s <= a.from_s < b.to_s for b in bars) for a in bars)
    assert max(v for _, v in charts["concurrency"].lines[0].points) == at_once <= 4
