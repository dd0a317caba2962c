"""``raysim.plan`` and ``raysim.sweep``: the same from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.planner import plan as planning
from raysim.planner.plan import Answer, Question
from raysim.planner.pool import runner_of
from raysim.planner.space import Space, space_of
from raysim.planner.store import Store
from raysim.planner.sweep import sweep as run_sweep
from raysim.scenario.load import AnyScenario

if TYPE_CHECKING:
    import pandas as pd


def plan(
    scenario: AnyScenario,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    minimize: str | None = None,
    maximize: str | None = None,
    subject_to: Sequence[str] = (),
    max_gpus: int | None = None,
    likely: float | None = None,
    quantile: float | None = None,
    jobs: int = 1,
    on: str = "processes",
    address: str | None = None,
    runs: str | Path | None = None,
) -> Answer:
    """The best way to run a training job, or a Ray program.

    Parameters
    ----------
    scenario
        From ``raysim.load``.
    vary
        Values to try by key, as ``scenario.with_`` takes them; None: the scenario's ``vary``, or
        what suits the job: of a training job sizes of the cluster, ZeRO stages, micro-batches and
        checkpointing, of a Ray program sizes and bounds of its groups and of its deployments.
    minimize, maximize
        A metric; by default the cost that the job has.
    subject_to
        Beside the scenario's targets: ``["days <= 7"]``.
    likely
        Least probability that it fits and all targets are met; 0: as predicted. None: those that
        do with 0.8 come first.
    quantile
        Rank by what the metric is at this quantile of its prediction's interval, towards the
        worse, as 0.9; None: as predicted.
    jobs
        Processes. Above one, a script needs the guard ``if __name__ == "__main__":``.
    on, address
        ``ray``: tasks of a real Ray cluster instead, at that address.
    runs
        Keep trials in a folder of it, and go on from there.

    Returns
    -------
    Answer
        ``answer.plan.best``, ``answer.sweep.frame``, ``answer.chosen()``.

    Raises
    ------
    ScenarioError
        The question contradicts itself, or names what is not there.
    """
    question = Question(
        vary=vary, minimize=minimize, maximize=maximize, subject_to=tuple(subject_to),
        max_gpus=max_gpus, likely=likely, quantile=quantile,
    )  # fmt: skip
    return planning.plan(
        scenario, question, runner=runner_of(on, jobs=jobs, address=address),
        runs=None if runs is None else Path(runs),
    )  # fmt: skip


def sweep(
    scenario: AnyScenario,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    jobs: int = 1,
    on: str = "processes",
    address: str | None = None,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """A row per combination: its keys, then what came of it.

    Charts of it: ``frame.raysim.pareto("days", "usd")``, ``frame.raysim.parallel()``.

    Parameters
    ----------
    jobs, on, address
        As of ``plan``.
    folder
        Keep trials there, and go on from there.

    Raises
    ------
    ScenarioError
        A key without values.
    """
    from raysim.report.plots import door as charts

    charts.register()
    space: Space = space_of(scenario, vary)
    store = None if folder is None else Store(Path(folder))
    limits = scenario.targets
    runner = runner_of(on, jobs=jobs, address=address)
    return run_sweep(scenario, space, runner, limits=limits, store=store).frame
