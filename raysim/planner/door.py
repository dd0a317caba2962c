"""``raysim.plan`` and ``raysim.sweep``: the same from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.planner import plan as planning
from raysim.planner.plan import Answer, Question
from raysim.planner.pool import processes
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
    likely: float = 0.0,
    jobs: int = 1,
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
        checkpointing, of a Ray program sizes of its groups of nodes.
    minimize, maximize
        A metric; by default the cost that the job has.
    subject_to
        Beside the scenario's targets: ``["days <= 7"]``.
    likely
        Least probability that all targets are met.
    jobs
        Processes. Above one, a script needs the guard ``if __name__ == "__main__":``.
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
        max_gpus=max_gpus, likely=likely,
    )  # fmt: skip
    return planning.plan(
        scenario, question, runner=processes(jobs), runs=None if runs is None else Path(runs)
    )


def sweep(
    scenario: AnyScenario,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    jobs: int = 1,
    folder: str | Path | None = None,
) -> pd.DataFrame:
    """A row per combination: its keys, then what came of it.

    Parameters
    ----------
    folder
        Keep trials there, and go on from there.

    Raises
    ------
    ScenarioError
        A key without values.
    """
    space: Space = space_of(scenario, vary)
    store = None if folder is None else Store(Path(folder))
    limits = scenario.targets
    return run_sweep(scenario, space, processes(jobs), limits=limits, store=store).frame
