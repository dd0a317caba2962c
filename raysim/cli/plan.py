"""``raysim plan``: search, print the choice, write what deploys it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.cli.run import load, parse_changes
from raysim.errors import ScenarioError

if TYPE_CHECKING:
    from raysim.planner.pool import Runner

RUNS = Path("runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The flags of the verb."""

    changes: tuple[str, ...] = ()
    vary: tuple[str, ...] = ()
    minimize: str | None = None
    maximize: str | None = None
    subject_to: tuple[str, ...] = ()
    days: float | None = None
    budget: float | None = None
    max_gpus: int | None = None
    likely: float = 0.0
    processes: int = 1
    on: str = "processes"
    address: str | None = None
    top: int = 5
    out: Path | None = None
    as_json: bool = False


def plan(path: Path, options: PlanOptions) -> bool:
    """Plan a scenario, print the choice and write its folder.

    Returns
    -------
    bool
        True when nothing meets the targets, or the search was interrupted.
    """
    from raysim.planner import files
    from raysim.planner.plan import Question
    from raysim.planner.plan import plan as search
    from raysim.report import plan_console

    scenario = load(path, options.changes)
    question = Question(
        vary=_vary(options.vary) or None, minimize=options.minimize, maximize=options.maximize,
        subject_to=_limits(options), max_gpus=options.max_gpus, likely=options.likely,
    )  # fmt: skip
    with terminal.progress(shown=not options.as_json) as progress:
        answer = search(
            scenario, question, runner=_runner(options), runs=options.out or RUNS, told=progress
        )
    assert answer.folder is not None, "asked for a folder"
    wrote = files.write(answer, answer.folder)
    summary = files.summary_of(answer)
    if options.as_json:
        terminal.say(json.dumps(summary, indent=1))
    else:
        shown = [f"{answer.folder}/", *wrote]
        terminal.show(
            plan_console.render(summary, top=options.top, width=terminal.width(), wrote=shown)
        )
    return answer.plan.best is None or not answer.sweep.complete


def _limits(options: PlanOptions) -> tuple[str, ...]:
    found = list(options.subject_to)
    if options.days is not None:
        found.append(f"days <= {options.days}")
    if options.budget is not None:
        found.append(f"usd <= {options.budget}")
    return tuple(found)


def _vary(said: tuple[str, ...]) -> dict[str, list[Any]]:
    """``key=[1, 2, 4]`` or ``key=1,2,4``.

    Raises
    ------
    ScenarioError
        Nothing to try.
    """
    space: dict[str, list[Any]] = {}
    for key, value in parse_changes(said).items():
        values = value if isinstance(value, list) else _split(value)
        if not values:
            raise ScenarioError(f"--vary {key}: no values to try")
        space[key] = values
    return space


def _split(value: Any) -> list[Any]:
    if not isinstance(value, str):
        return [value]
    return [next(iter(parse_changes((f"x={part.strip()}",)).values())) for part in value.split(",")]


def _runner(options: PlanOptions) -> Runner:
    from raysim.planner import pool

    if options.on == "ray":
        return pool.on_ray(options.address)
    return pool.processes(options.processes)
