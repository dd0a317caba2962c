"""What makes a sweep slow or stuck, with its numbers and the fix.

Real counterparts: the guidance of ``doc/source/tune/tutorials/tune-scalability.rst``,
``_InsufficientResourcesManager`` and PBT's own warnings (ray 2.60).
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.raylibs.tune.defaults import (
    COMFORTABLE_LOGGED_RESULTS_PER_S,
    COMFORTABLE_RESULTS_PER_S,
)
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.schedulers import PopulationBasedTraining
from raysim.raylibs.warnings import PlannerWarning

BUSY_FRAC = 0.8
"""A driver that works so much of the time keeps trials waiting."""
FEW_KEPT = 2


def of_result(experiment: Experiment, result: TuneResult) -> tuple[PlannerWarning, ...]:
    """After the sweep."""
    found: list[PlannerWarning] = []
    rate = result.n_results / result.took_s if result.took_s else 0.0
    limit = (
        COMFORTABLE_LOGGED_RESULTS_PER_S if experiment.loggers else COMFORTABLE_RESULTS_PER_S
    )  # fmt: skip
    if rate > limit:
        having = "with loggers" if experiment.loggers else "without loggers"
        found.append(
            PlannerWarning(
                code="tune-result-rate",
                cause=f"Trials report {rate:,.0f} results/s; {having} Ray's guidance is {limit}.",
                fix="Report less often, or several values at once.",
            )
        )
    busy = result.driver_busy_s / result.took_s if result.took_s else 0.0
    if busy > BUSY_FRAC:
        wait_ms = 1e3 * result.results_lag_s / max(result.n_results, 1)
        found.append(
            PlannerWarning(
                code="tune-driver-full",
                cause=f"The driver's one thread is busy {busy:.0%} of the time; "
                f"a result waits {wait_ms:.0f} ms.",
                fix="Report less often, use longer trials, or switch loggers off.",
            )
        )
    return tuple(found)


def of_plan(
    experiment: Experiment, pending: int, cluster: Mapping[str, float]
) -> tuple[PlannerWarning, ...]:
    """Before it: from its settings and the cluster's resources."""
    found: list[PlannerWarning] = []
    if pending == 1 and experiment.search_alg is not None:
        found.append(
            PlannerWarning(
                code="tune-one-pending",
                cause="A searcher without a limit lets one trial wait for resources at a time.",
                fix="Set max_concurrent_trials to the number of trials that fit the cluster.",
            )
        )
    resources = experiment.resources
    if isinstance(resources, PlacementGroupFactory):
        for name, asked in resources.required_resources.items():
            if asked > cluster.get(name, 0.0):
                found.append(
                    PlannerWarning(
                        code="tune-trial-too-big",
                        cause=f"A trial asks for {asked:g} {name}, the cluster has "
                        f"{cluster.get(name, 0.0):g}: no trial can start.",
                        fix="Ask for less, or add nodes.",
                    )
                )
    keep = experiment.num_to_keep
    is_pbt = isinstance(experiment.scheduler, PopulationBasedTraining)
    if is_pbt and keep is not None and keep <= FEW_KEPT:
        found.append(
            PlannerWarning(
                code="pbt-num-to-keep",
                cause=f"PBT with num_to_keep={keep} may delete what others are about to take over.",
                fix="Keep at least 3 checkpoints of a trial.",
            )
        )
    return tuple(found)
