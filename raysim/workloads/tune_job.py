"""A sweep of Ray Tune by numbers: trials, their metric curves, a scheduler, who else is there.

Real counterpart: a user's script around ``tuner.fit()``. A trial's metric falls (or rises) from
``start`` towards a floor of its own, ``floor + (start - floor) exp(-i / decay)``, with noise: made
up, but with ranks that change, which is what schedulers decide on. Other tenants hold placement
groups from one time to another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import exp
from typing import Any, Literal

from raysim.kernel.rng import Streams
from raysim.raycore import protocol as p
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import total_resources
from raysim.raycore.scripts import (
    Script,
    ask_gcs,
    make_group,
    remove_group,
    sleep,
    spawn,
    wait_group,
)
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.tune import advice
from raysim.raylibs.tune.controller import TuneController
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.over_time import Reports, charts_of
from raysim.raylibs.tune.program import Step, TrialProgram
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from raysim.raylibs.tune.search.algorithms import RandomSearcher

SchedulerKind = Literal["fifo", "asha", "hyperband", "median_stopping", "pbt"]
METRIC = "loss"
SHOWN = 5
"""Best trials in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """What trials report as ``loss``."""

    start: float = 2.5
    floor_low: float = 0.2
    floor_high: float = 1.2
    decay: float = 10.0
    """Iterations to come 63 % of the way."""
    noise: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSpec:
    """One trial."""

    iterations: int = 100
    iteration_s: float = 30.0
    iteration_cv: float = 0.0
    """Of a trial's pace, and of each of its iterations."""
    on_cores: float = 0.0
    """Cores an iteration keeps busy; 0: it waits for something else, as for GPUs."""
    setup_s: float = 0.0
    resources: Mapping[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    workers: int = 0
    """Bundles beside the trainable's, each with ``resources``; the trainable then holds a CPU."""
    checkpoint_bytes: int | None = None
    checkpoint_every: int = 1
    storage_bytes_per_s: float = 500e6
    curve: Curve = field(default_factory=Curve)

    @property
    def bundles(self) -> PlacementGroupFactory:
        """Its placement group."""
        if not self.workers:
            return PlacementGroupFactory([self.resources])
        return PlacementGroupFactory([{"CPU": 1}, *[self.resources] * self.workers])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Somebody else's job: bundles, held from ``begins_s`` on for ``lasts_s`` once placed."""

    name: str
    bundles: tuple[Mapping[str, float], ...]
    begins_s: float
    lasts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneJob:
    """The sweep."""

    trials: int
    trial: TrialSpec = field(default_factory=TrialSpec)
    scheduler: SchedulerKind = "fifo"
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the scheduler, by Ray's names."""
    searcher: bool = False
    """Suggestions come one by one, as of Optuna; else random search."""
    max_concurrent_trials: int | None = None
    reuse_actors: bool = False
    loggers: bool = True
    max_failures: int = 0
    num_to_keep: int | None = None
    time_budget_s: float | None = None
    tenants: tuple[Tenant, ...] = ()
    kind: str = "tune"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """What targets may limit."""
        return {
            "seconds_to_finish": "seconds", "results_per_s": "per_s", "best_loss": "count",
            "trial_hours": "count", "driver_busy": "share",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        for tenant in self.tenants:
            yield spawn(_hold(tenant))
        reports = Reports(process, METRIC)
        experiment = self.experiment(reports)
        nodes = yield ask_gcs(p.GetAllNodeInfo())
        cluster = total_resources(nodes)
        controller = TuneController(
            process, experiment, streams, cluster_cpus=cluster.get("CPU", 1.0)
        )
        plan = advice.of_plan(experiment, controller.max_pending, cluster)
        result: TuneResult = yield from controller.run()
        warnings = (*plan, *advice.of_result(experiment, result))
        charts = charts_of(
            result.trials, reports, metric=METRIC, mode="min", iterations=self.trial.iterations
        )
        return replace(self._report(result, warnings, cluster), charts=charts)

    def experiment(self, on_result: Reports | None = None) -> Experiment:
        """With new scheduler and search."""
        return Experiment(
            trainable=TrialProgram(
                steps=self._steps, setup_s=self.trial.setup_s,
                write_bytes_per_s=self.trial.storage_bytes_per_s,
                read_bytes_per_s=self.trial.storage_bytes_per_s,
            ),
            num_samples=self.trials,
            resources=self.trial.bundles,
            search_alg=RandomSearcher() if self.searcher else None,
            scheduler=self._scheduler(),
            metric=METRIC,
            mode="min",
            max_concurrent_trials=self.max_concurrent_trials,
            reuse_actors=self.reuse_actors,
            loggers=self.loggers,
            max_failures=self.max_failures,
            num_to_keep=self.num_to_keep,
            time_budget_s=self.time_budget_s,
            on_result=on_result,
        )  # fmt: skip

    def _scheduler(self) -> TrialScheduler:
        if self.scheduler == "asha":
            return ASHAScheduler(**self.settings)
        if self.scheduler == "hyperband":
            return HyperBandScheduler(**self.settings)
        if self.scheduler == "median_stopping":
            return MedianStoppingRule(**self.settings)
        if self.scheduler == "pbt":
            return PopulationBasedTraining(hyperparam_mutations={"x": [0, 1]}, **self.settings)
        return FIFOScheduler()

    def _steps(self, _config: Mapping[str, Any], rng: Any, start: int) -> Iterator[Step]:
        trial, curve = self.trial, self.trial.curve
        floor = rng.uniform(curve.floor_low, curve.floor_high)
        pace = max(0.1, rng.normal(1.0, trial.iteration_cv)) if trial.iteration_cv else 1.0
        for i in range(start, trial.iterations):
            takes_s = trial.iteration_s * pace
            if trial.iteration_cv:
                takes_s *= max(0.1, rng.normal(1.0, trial.iteration_cv))
            loss = floor + (curve.start - floor) * exp(-(i + 1) / curve.decay)
            saves = trial.checkpoint_bytes is not None and (i + 1) % trial.checkpoint_every == 0
            yield Step(
                duration_s=0.0 if trial.on_cores else takes_s,
                core_s=takes_s if trial.on_cores else 0.0,
                width=trial.on_cores or 1.0,
                metrics={METRIC: loss + rng.normal(0.0, curve.noise)},
                checkpoint_bytes=trial.checkpoint_bytes if saves else None,
            )

    def _report(
        self, result: TuneResult, warnings: tuple[Any, ...], cluster: Mapping[str, float]
    ) -> LibraryReport:
        ended = [t for t in result.trials if t.status == "TERMINATED"]
        full = sum(t.n_results >= self.trial.iterations for t in ended)
        held_s = sum(b - a for t in result.trials for a, b in t.runs if b > 0) / 1e9
        whole_s = self.trials * self.trial.iterations * self.trial.iteration_s
        best = result.best(METRIC, "min")
        ranked = sorted(
            (t for t in result.trials if METRIC in t.last_result),
            key=lambda t: t.last_result[METRIC],
        )  # fmt: skip
        metrics = {
            "seconds_to_finish": result.took_s,
            "results_per_s": result.n_results / result.took_s,
            "trial_hours": held_s / 3600,
            "driver_busy": result.driver_busy_s / result.took_s,
        }
        if best is not None:
            metrics["best_loss"] = best.last_result[METRIC]
        asked = self.trial.bundles.required_resources
        fit = min(int(cluster.get(k, 0.0) / v) for k, v in asked.items())
        return LibraryReport(
            kind="tune",
            ok=not result.num_errors,
            text=f"{len(ended)} of {self.trials} trials ended, {full} at their last iteration; "
            f"{held_s / 3600:,.1f} trial hours, {whole_s / 3600:,.1f} without early stopping.",
            metrics=metrics,
            tables=(
                Table(
                    title="best trials",
                    columns=(
                        ("trial", "text"), ("loss", "count"), ("iterations", "count"),
                        ("held its resources", "seconds"), ("started", "count"),
                    ),
                    rows=tuple(
                        (
                            t.trial_id, round(t.last_result[METRIC], 4), t.n_results,
                            sum(b - a for a, b in t.runs) / 1e9, len(t.runs),
                        )
                        for t in ranked[:SHOWN]
                    ),
                ),
            ),
            bound_by=f"{fit} trials fit the cluster at once."
            if metrics["driver_busy"] < advice.BUSY_FRAC
            else "The driver: it handles results one after the other.",
            warnings=warnings,
            inputs=_INPUTS,
            simplifications=(
                "Losses are drawn from curves; only their order matters.",
                "Of results that wait, the driver takes the first; Ray takes any.",
            ),
        )  # fmt: skip


_GUIDE = "Ray Tune's scalability guide, four rows (validation, section ray_tune)"
_INPUTS = (
    Input(name="driver, per event", value="1.0 ms", basis="measured", source="ray 2.60, 2 cores"),
    Input(name="driver, per result", value="0.19 ms, 1.6 ms with loggers", basis="measured",
          source=_GUIDE),
    Input(name="driver, per trial", value="57 ms", basis="measured", source=_GUIDE),
)  # fmt: skip


def _hold(tenant: Tenant) -> Script:
    yield sleep(round(tenant.begins_s * 1e9))
    group = yield make_group(PlacementGroupFactory(tenant.bundles).sets())
    if (yield wait_group(group)):
        yield sleep(round(tenant.lasts_s * 1e9))
    yield remove_group(group)
