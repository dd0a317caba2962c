"""``raysim plan``: search, print the choice, write what deploys it."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.cli.run import load, parse_changes
from raysim.cli.watch import InterruptedRun, Watch, watching
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
    likely: float | None = None
    quantile: float | None = None
    processes: int | None = None
    on: str = "processes"
    address: str | None = None
    top: int = 5
    out: Path | None = None
    as_json: bool = False
    quiet: bool = False


def plan(path: Path, options: PlanOptions) -> bool:
    """Plan a scenario, print the choice and write its folder.

    Returns
    -------
    bool
        True when nothing meets the targets.

    Raises
    ------
    InterruptedRun
        By Ctrl-C; trials are kept.
    """
    from raysim.cli import plan_page
    from raysim.planner import files
    from raysim.planner.plan import Question
    from raysim.planner.plan import plan as search

    scenario = load(path, options.changes)
    _writable(options.out or RUNS)
    question = Question(
        vary=_vary(options.vary) or None, minimize=options.minimize, maximize=options.maximize,
        subject_to=_limits(options), max_gpus=options.max_gpus, likely=options.likely,
        quantile=options.quantile,
    )  # fmt: skip
    watch = Watch()
    try:
        with watching(watch, shown=not (options.as_json or options.quiet)):
            answer = search(
                scenario, question, runner=_runner(options), runs=options.out or RUNS,
                told=watch.told,
            )  # fmt: skip
    except KeyboardInterrupt:
        raise InterruptedRun(f"{watch.interrupted()} The same command goes on.") from None
    assert answer.folder is not None, "asked for a folder"
    wrote = files.write(answer, answer.folder)
    summary = files.summary_of(answer)
    wrote.append(plan_page.write(answer, summary, path, options))
    if answer.sweep.complete or answer.plan.best is not None:
        _print(summary, options, [f"{answer.folder}/", *wrote])
    if not answer.sweep.complete:
        known = f"{len(answer.sweep.trials):,} of {answer.sweep.size:,} points are decided"
        raise InterruptedRun(
            f"{watch.interrupted()} {known}, and what was tried is kept in {answer.folder}; the"
            " same command goes on."
        )
    return answer.plan.best is None


def _writable(folder: Path) -> None:
    """Make the folder before anything is tried.

    Raises
    ------
    ScenarioError
        Nothing can be written there.
    """
    with terminal.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _print(summary: dict[str, Any], options: PlanOptions, wrote: list[str]) -> None:
    from raysim.report import plan_console

    if options.as_json:
        terminal.say(json.dumps(summary, indent=1))
    elif options.quiet:
        terminal.say(plan_console.render(summary, top=options.top).plain.partition("\n")[0])
    else:
        terminal.show(
            plan_console.render(summary, top=options.top, width=terminal.width(), wrote=wrote)
        )


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

    return pool.runner_of(options.on, jobs=options.processes, address=options.address)
