"""A ``tune`` section as a spec of ``workloads.tune_job``."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.raylibs.tune import schedulers
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_tune import TrialSection, TuneSection
from raysim.workloads.tune_job import Curve, Tenant, TrialSpec, TuneJob

_CLASSES: dict[str, Any] = {
    "fifo": schedulers.FIFOScheduler,
    "asha": schedulers.ASHAScheduler,
    "hyperband": schedulers.HyperBandScheduler,
    "median_stopping": schedulers.MedianStoppingRule,
    "pbt": schedulers.PopulationBasedTraining,
}
_OURS = ("metric", "mode", "hyperparam_mutations", "custom_explore_fn")
"""Settings that the job makes itself."""


def read_tune(
    said: TuneSection, at: KeyPath, _folder: Path, document: Document,
    _inputs: dict[KeyPath, Path],
) -> TuneJob:  # fmt: skip
    """The sweep.

    Raises
    ------
    ScenarioError
        The scheduler has no such setting, or refuses its value.
    """
    cls = _CLASSES[said.scheduler]
    known = [name for name in signature(cls).parameters if name not in _OURS]
    for name in said.settings:
        if name not in known:
            raise ScenarioError(
                document.problem(
                    (*at, "settings", name),
                    f"{said.scheduler} has no setting {name}; it has {', '.join(known) or 'none'}",
                )
            )
    try:
        more = {"hyperparam_mutations": {"x": [0, 1]}} if said.scheduler == "pbt" else {}
        cls(**said.settings, **more)
    except (AssertionError, ValueError, TypeError) as error:
        raise ScenarioError(document.problem((*at, "settings"), str(error))) from None
    if said.trial.curve.floor[0] > said.trial.curve.floor[1]:
        raise ScenarioError(
            document.problem((*at, "trial", "curve", "floor"), "give the lower one first")
        )
    return TuneJob(
        trials=said.trials,
        trial=_trial(said.trial),
        scheduler=said.scheduler,
        settings=said.settings,
        searcher=said.searcher,
        max_concurrent_trials=said.max_concurrent_trials,
        reuse_actors=said.reuse_actors,
        loggers=said.loggers,
        max_failures=said.max_failures,
        num_to_keep=said.num_to_keep,
        time_budget_s=said.time_budget,
        tenants=tuple(
            Tenant(
                name=t.name, bundles=(t.resources,) * t.bundles, begins_s=t.begins, lasts_s=t.lasts
            )
            for t in said.tenants
        ),
    )


def _trial(said: TrialSection) -> TrialSpec:
    return TrialSpec(
        iterations=said.iterations,
        iteration_s=said.iteration,
        iteration_cv=said.iteration_cv,
        on_cores=said.on_cores,
        setup_s=said.setup,
        resources=said.resources,
        workers=said.workers,
        checkpoint_bytes=said.checkpoint,
        checkpoint_every=said.checkpoint_every,
        **({"storage_bytes_per_s": said.storage} if said.storage else {}),
        curve=Curve(
            start=said.curve.start, floor_low=said.curve.floor[0], floor_high=said.curve.floor[1],
            decay=said.curve.decay, noise=said.curve.noise,
        ),
    )  # fmt: skip
