"""``plan``: sweep a space, choose, and write what is needed to deploy the choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.kernel.progress import Told
from raysim.planner.choose import Plan, choose, objective_of, smallest_change
from raysim.planner.pool import Runner, processes
from raysim.planner.search import Wanted, search
from raysim.planner.sensitivity import elasticities
from raysim.planner.space import Space, chosen, space_of, with_batch_held
from raysim.planner.store import Store
from raysim.planner.sweep import Sweep, sweep_id
from raysim.results.targets import METRICS
from raysim.scenario.load import AnyScenario
from raysim.scenario.targets import Target, parse_target
from raysim.workloads.sensitivity import Elasticity


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Wanted):
    """What is asked about a scenario."""

    vary: Mapping[str, Sequence[Any]] | None = None
    """None: the scenario's own, or a sensible space."""
    subject_to: tuple[str, ...] = ()
    """Beside the scenario's targets, as ``days <= 7``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The plan, and all that was tried for it."""

    scenario: AnyScenario
    space: Space
    sweep: Sweep
    plan: Plan
    limits: tuple[Target, ...]
    folder: Path | None
    rests_on: tuple[Elasticity, ...] = ()
    """Inputs of the hardware that the first choice's step depends on."""

    def chosen(self) -> AnyScenario | None:
        """The scenario of the first choice."""
        best = self.plan.best or self.plan.instead
        return None if best is None else chosen(self.scenario, best.choice)

    @property
    def plot(self) -> Any:
        """Charts of all trials (`raysim.report.plots.sweeps.SweepPlots`): ``plot.pareto()``."""
        from raysim.report.plots import door

        return door.of_frame(self.sweep.frame)


def plan(
    scenario: AnyScenario,
    question: Question | None = None,
    *,
    runner: Runner | None = None,
    runs: Path | None = None,
    told: Told | None = None,
) -> Answer:
    """Answer a question about a scenario.

    Parameters
    ----------
    scenario
        A training job, or a Ray program.
    question
        None: the scenario's own space and targets, at the least cost.
    runner
        None: in this process.
    runs
        Where the folder of trials is kept; None: nowhere.
    told
        Called with what is done, and the share of it.

    Raises
    ------
    ScenarioError
        The question contradicts itself, or names what is not there.
    """
    asked = question or Question()
    if asked.quantile is not None and not 0 < asked.quantile < 1:
        raise ScenarioError(f"a quantile is between 0 and 1, got {asked.quantile}")
    if asked.vary is None and not scenario.spec.vary:
        scenario = with_batch_held(scenario)
    space = space_of(scenario, asked.vary)
    limits = (*scenario.targets, *(_limit(text, scenario) for text in asked.subject_to))
    folder = None
    if runs is not None:
        folder = runs / f"plan-{scenario.name}-{sweep_id(scenario, space, limits)}"
    store = None if folder is None else Store(folder)
    swept = search(
        scenario, space, runner or processes(1), wanted=asked, limits=limits, store=store,
        told=told,
    )  # fmt: skip
    objective = objective_of(
        swept.trials, asked.minimize, asked.maximize, known={**METRICS, **scenario.metrics},
        quantile=asked.quantile, likely=asked.likely,
    )  # fmt: skip
    found = choose(
        swept, objective, likely=asked.likely, max_gpus=asked.max_gpus, units=scenario.metrics
    )
    if not found.ranked and swept.complete:
        instead = smallest_change(scenario, swept, space, limits, asked.max_gpus)
        found = replace(found, instead=instead)
    answer = Answer(
        scenario=scenario, space=space, sweep=swept, plan=found, limits=limits, folder=folder
    )
    best, trial = answer.chosen(), found.best or found.instead
    if best is None or trial is None or not swept.complete:
        return answer
    if told is not None:
        told("what the choice rests on", 1.0)
    return replace(answer, rests_on=tuple(elasticities(best, trial.metrics.get("seconds"))))


def _limit(text: str, scenario: AnyScenario) -> Target:
    """``days <= 7`` as a target.

    Raises
    ------
    ScenarioError
        It is not a metric and a condition.
    """
    name, _, condition = text.strip().partition(" ")
    try:
        return parse_target(name, condition, scenario.metrics)
    except ValueError as error:
        raise ScenarioError(Problem(message=f"{text!r}: {error}")) from None
