"""Experiments on small clusters: order, resources, saves, failures, the driver's time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import Sleep, drive, function, get, now, sleep, submit
from raysim.raycore.tasks import TaskOptions
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.defaults import TuneCosts, TuneDefaults
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.program import SpecTrainable, Step, TrialProgram
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.sample import choice, grid_search
from raysim.raylibs.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from raysim.raylibs.tune.search.algorithms import ConcurrencyLimiter, RandomSearcher
from tests.raycore_parts import ray_cluster
from tests.stories.ray_scripts import run
from tests.unit.raylibs.tune.parts import cheap, sleeping, tuned

GRID = {"x": grid_search([1, 2, 3, 4, 5, 6])}


def experiment(**changes: Any) -> Experiment:
    base = Experiment(
        trainable=TrialProgram(steps=sleeping(4)), param_space=GRID, defaults=cheap(), loggers=False
    )
    return replace(base, **changes)


def statuses(result: TuneResult) -> dict[str, int]:
    return dict(Counter(t.status for t in result.trials))


def test_every_trial_reports_each_iteration_and_ends_once() -> None:
    seen: list[tuple[str, int]] = []
    result = tuned(
        ray_cluster(cpus=4, check=True),
        experiment(on_result=lambda t, r: seen.append((t.trial_id, r["training_iteration"]))),
    )
    assert statuses(result) == {"TERMINATED": 6}
    assert sorted(seen) == [(t.trial_id, i) for t in result.trials for i in (1, 2, 3, 4)]
    assert result.n_results == 24
    assert [t.last_result["score"] for t in result.trials] == [4, 8, 12, 16, 20, 24]
    assert all(t.last_result["time_total_s"] == pytest.approx(4, abs=0.01) for t in result.trials)
    assert result.actors_started == 6


def test_trials_run_in_waves_of_what_fits() -> None:
    """Six trials of 4 s on 4 CPUs: two waves, each after the start of its workers."""
    result = tuned(ray_cluster(cpus=4), experiment())
    starts = sorted(t.started_ns / 1e9 for t in result.trials)
    assert starts[3] < 4 < starts[4]
    assert 8 < result.took_s < 8 + 4
    bundles = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
    wide = tuned(ray_cluster(cpus=4), experiment(resources=bundles))
    assert wide.took_s > 12


def test_reused_actors_do_not_start_again() -> None:
    anew = tuned(ray_cluster(cpus=2), experiment())
    reused = tuned(ray_cluster(cpus=2), experiment(reuse_actors=True))
    assert (anew.actors_started, reused.actors_started) == (6, 2)
    assert reused.took_s < anew.took_s - 1
    assert [t.last_result["score"] for t in reused.trials] == [4, 8, 12, 16, 20, 24]


def test_the_short_way_of_results_is_the_long_one() -> None:
    """Results played by Ray Core one by one, and as timers: the same within what a call varies."""

    class Long:
        """The same program; only not of the class that takes the short way."""

        def __init__(self, inner: SpecTrainable) -> None:
            for name in ("setup", "train", "save", "restore", "reset", "stop"):
                setattr(self, name, getattr(inner, name))

    program = TrialProgram(steps=sleeping(50, seconds=0.1))
    defaults = TuneDefaults(trainable_core_s=0.0)
    short = tuned(ray_cluster(cpus=4), experiment(trainable=program, defaults=defaults))
    cluster = ray_cluster(cpus=4)

    def make(process: Any, trial: Any) -> Any:
        return Long(SpecTrainable(process, program, trial, cluster.sim.rng))

    long = tuned(cluster, experiment(trainable=make, defaults=defaults))
    assert long.n_results == short.n_results == 300
    assert short.took_s == pytest.approx(long.took_s, rel=0.01)
    assert [t.trial_id for t in sorted(long.trials, key=lambda t: t.ended_ns or 0)] == [
        t.trial_id for t in sorted(short.trials, key=lambda t: t.ended_ns or 0)
    ]


def test_a_full_driver_serves_results_one_after_the_other() -> None:
    """Twenty trials want 2000 results/s of a driver that can 200: it is busy all the time."""
    costs = TuneCosts(event_s=4e-3, result_s=1e-3, trial_s=0, state_trial_s=0)

    def full(**changes: Any) -> TuneResult:
        settings = TuneDefaults(costs=costs, trainable_core_s=0.0, **changes)
        program = TrialProgram(steps=sleeping(100, seconds=0.01))
        asked = experiment(trainable=program, param_space={}, num_samples=20, defaults=settings)
        result: TuneResult = tuned(ray_cluster(cpus=20), asked, cpus=20)
        return result

    result = full()
    least_s = 20 * 100 * 5e-3
    assert least_s < result.took_s < least_s + 4
    assert result.driver_busy_s == pytest.approx(least_s, rel=0.02)
    buffered = full(result_buffer_length=50)
    assert buffered.n_results == result.n_results
    assert buffered.took_s < result.took_s / 2


def test_stop_rules_and_a_time_budget() -> None:
    stopped = tuned(ray_cluster(cpus=4), experiment(stop={"score": 6}))
    assert [t.n_results for t in stopped.trials] == [4, 3, 2, 2, 2, 1]
    called = tuned(ray_cluster(cpus=4), experiment(stop=lambda _id, r: r["score"] >= 6))
    assert [t.n_results for t in called.trials] == [4, 3, 2, 2, 2, 1]
    short = tuned(ray_cluster(cpus=2), experiment(time_budget_s=4.5))
    assert 4.5 <= short.took_s < 6
    assert set(statuses(short)) == {"TERMINATED"}
    assert sum(t.n_results for t in short.trials) < 12


def test_no_more_trials_at_once_than_allowed() -> None:
    def most_at_once(result: TuneResult) -> int:
        edges = [(a, 1) for t in result.trials for a, _ in t.runs]
        edges += [(b, -1) for t in result.trials for _, b in t.runs]
        level = most = 0
        for _, change in sorted(edges):
            level += change
            most = max(most, level)
        return most

    assert most_at_once(tuned(ray_cluster(cpus=4), experiment())) == 4
    assert most_at_once(tuned(ray_cluster(cpus=4), experiment(max_concurrent_trials=2))) == 2
    limited = ConcurrencyLimiter(RandomSearcher(), 3)
    space = {"x": choice([1, 2, 3])}
    searched = experiment(search_alg=limited, param_space=space, num_samples=7)
    result = tuned(ray_cluster(cpus=8), searched)
    assert most_at_once(result) == 3
    assert len(result.trials) == 7
    alone = experiment(search_alg=RandomSearcher(), param_space=space, num_samples=4)
    one_pends = sorted(t.started_ns or 0 for t in tuned(ray_cluster(cpus=8), alone).trials)
    grid = experiment(param_space=space, num_samples=4)
    all_pend = sorted(t.started_ns or 0 for t in tuned(ray_cluster(cpus=8), grid).trials)
    assert one_pends[-1] - one_pends[0] > 3 * (all_pend[-1] - all_pend[0])


def test_checkpoints_cost_their_bytes_and_are_kept_as_told() -> None:
    program = TrialProgram(steps=sleeping(4, checkpoint_bytes=500_000_000), write_bytes_per_s=250e6)
    result = tuned(ray_cluster(cpus=8), experiment(trainable=program, num_to_keep=2), cpus=8)
    assert {len(t.checkpoints) for t in result.trials} == {2}
    assert all(t.last_result["time_total_s"] == pytest.approx(12, abs=0.1) for t in result.trials)


def fails_once_at(iteration: int) -> TrialProgram:
    failed: dict[float, None] = {}

    def steps(config: Mapping[str, Any], _rng: Any, start: int) -> Iterator[Step]:
        for i in range(start, 4):
            fails = i == iteration and config["x"] not in failed
            if fails:
                failed[config["x"]] = None
            yield Step(duration_s=1.0, metrics={"score": i}, checkpoint_bytes=0, fails=fails)

    return TrialProgram(steps=steps)


def test_a_trial_that_fails_goes_on_from_its_checkpoint_or_ends() -> None:
    result = tuned(ray_cluster(cpus=8), experiment(trainable=fails_once_at(2)), cpus=8)
    assert statuses(result) == {"ERROR": 6}
    assert {t.n_results for t in result.trials} == {2}
    again = experiment(trainable=fails_once_at(2), max_failures=1)
    result = tuned(ray_cluster(cpus=8), again, cpus=8)
    assert statuses(result) == {"TERMINATED": 6}
    assert {(t.n_results, t.num_failures) for t in result.trials} == {(4, 1)}
    fast = experiment(trainable=fails_once_at(2), fail_fast=True)
    result = tuned(ray_cluster(cpus=2), fast)
    assert statuses(result)["TERMINATED"] >= 4


def test_a_node_that_dies_takes_its_trials_with_it() -> None:
    cluster = ray_cluster(2, cpus=3)
    cluster.sim.at("4s", cluster.end_processes, 1, "power lost")
    program = TrialProgram(steps=sleeping(6, checkpoint_bytes=0))
    result = tuned(cluster, experiment(trainable=program, max_failures=-1), cpus=6)
    assert statuses(result) == {"TERMINATED": 6}
    assert {t.n_results for t in result.trials} <= {6, 7}
    assert sum(t.num_failures for t in result.trials) == 3


def test_asha_stops_at_rungs_whoever_is_not_among_the_best_so_far() -> None:
    """Every result is judged again here, by numpy's percentile of what came before it."""
    space = {"x": grid_search([(7 * i) % 16 for i in range(16)])}
    asha = ASHAScheduler(metric="score", mode="max", max_t=8, grace_period=1, reduction_factor=2)
    seen: list[tuple[Any, int, float]] = []
    result = tuned(
        ray_cluster(cpus=4),
        experiment(
            trainable=TrialProgram(steps=sleeping(20)), param_space=space, scheduler=asha,
            on_result=lambda t, r: seen.append((t, r["training_iteration"], r["score"])),
        ),
    )  # fmt: skip
    recorded: dict[int, list[float]] = {1: [], 2: [], 4: [], 8: []}
    for trial, iteration, score in seen:
        if iteration not in recorded:
            continue
        cutoff = np.percentile(recorded[iteration], 50) if recorded[iteration] else -np.inf
        goes_on = iteration < 8 and score >= cutoff
        recorded[iteration].append(score)
        assert goes_on == (trial.n_results > iteration), (trial, iteration)
    assert [len(v) for v in recorded.values()] == [
        sum(t.n_results >= rung for t in result.trials) for rung in recorded
    ]
    assert len(recorded[1]) == 16
    assert 1 <= len(recorded[8]) < len(recorded[2]) < 16


def faster_the_better(iterations: int) -> Any:
    def steps(config: Mapping[str, Any], _rng: Any, start: int) -> Iterator[Step]:
        for i in range(start, iterations):
            x = config["x"]
            yield Step(duration_s=2 - 0.1 * x, metrics={"score": x * (i + 1)}, checkpoint_bytes=0)

    return steps


def test_hyperband_pauses_trials_and_takes_them_up_again() -> None:
    space = {"x": grid_search([1, 2, 3, 4, 5, 6, 7, 8, 9])}
    band = HyperBandScheduler(metric="score", mode="max", max_t=9, reduction_factor=3)
    program = TrialProgram(steps=faster_the_better(20))
    result = tuned(
        ray_cluster(cpus=4), experiment(trainable=program, param_space=space, scheduler=band)
    )
    assert statuses(result) == {"TERMINATED": 9}
    assert max(t.n_results for t in result.trials) == 9
    assert any(len(t.runs) > 1 for t in result.trials)
    assert band.num_stopped > 0


def test_median_stopping_ends_the_worst() -> None:
    rule = MedianStoppingRule(
        time_attr="training_iteration", metric="score", mode="max", grace_period=2
    )
    program = TrialProgram(steps=faster_the_better(10))
    result = tuned(ray_cluster(cpus=8), experiment(trainable=program, scheduler=rule), cpus=8)
    ran = [t.n_results for t in result.trials]
    assert ran[-1] == 10
    assert min(ran[:3]) < 10


def test_pbt_moves_checkpoints_from_the_best_to_the_worst() -> None:
    pbt = PopulationBasedTraining(
        time_attr="training_iteration", metric="score", mode="max", perturbation_interval=2,
        hyperparam_mutations={"x": [1, 2, 3, 4, 5, 6]},
    )  # fmt: skip
    program = TrialProgram(steps=sleeping(12, checkpoint_bytes=100_000_000), read_bytes_per_s=100e6)
    result = tuned(
        ray_cluster(cpus=8), experiment(trainable=program, scheduler=pbt), cpus=8, until="4h"
    )
    assert statuses(result) == {"TERMINATED": 6}
    assert pbt.num_perturbations > 0
    exploited = [t for t in result.trials if "@perturbed" in t.experiment_tag]
    assert exploited
    assert all(len(t.runs) > 1 for t in exploited)


def test_another_job_shares_the_cluster() -> None:
    """A task holds 3 of 4 CPUs for 20 s: until then trials run one at a time."""
    cluster = ray_cluster(cpus=4)
    ended: list[int] = []

    def other(_process: Any) -> Any:
        held = ResourceSet.of({"CPU": 3})
        refs = yield submit(TaskOptions(function=function(Sleep(20 * 10**9)), resources=held))
        yield get(refs)
        ended.append((yield now()))

    def sweep(process: Any) -> Any:
        yield sleep(2 * 10**9)
        asked = experiment(trainable=TrialProgram(steps=sleeping(4)))
        return (yield from TuneController(process, asked, cluster.sim.rng).run())

    cluster.driver(lambda d: drive(d, other))
    result = run(cluster, sweep)
    early = [t for t in result.trials if t.started_ns < ended[0]]
    assert len(early) == 4
    starts = sorted(t.started_ns for t in early)
    assert all(b - a > 4e9 for a, b in pairwise(starts))
    assert statuses(result) == {"TERMINATED": 6}


def test_equal_seeds_give_equal_experiments() -> None:
    def steps(config: Mapping[str, Any], rng: Any, start: int) -> Iterator[Step]:
        for i in range(start, 6):
            yield Step(duration_s=float(rng.uniform(0.5, 1.5)), metrics={"score": rng.normal() + i})

    def once(seed: int) -> Any:
        asha = ASHAScheduler(metric="score", mode="max", max_t=6, reduction_factor=2, brackets=2)
        cluster = ray_cluster(cpus=4, seed=seed)
        result = tuned(
            cluster, experiment(trainable=TrialProgram(steps=steps), num_samples=3, scheduler=asha)
        )
        return cluster.sim.digest, [(t.trial_id, t.n_results, t.ended_ns) for t in result.trials]

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="without a valid `metric`"):
        tuned(ray_cluster(), experiment(scheduler=ASHAScheduler()))
    both = ASHAScheduler(metric="score", mode="max")
    with pytest.raises(ValueError, match="already instantiated"):
        tuned(ray_cluster(), experiment(scheduler=both, metric="score", mode="max"))
    pbt = PopulationBasedTraining(metric="s", mode="max", hyperparam_mutations={"x": [1, 2]})
    space = {"x": choice([1, 2])}
    searched = experiment(scheduler=pbt, search_alg=RandomSearcher(), param_space=space)
    with pytest.raises(ValueError, match="Search algorithms cannot be used"):
        tuned(ray_cluster(), searched)
