"""``raysim run``: predict, print, write."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.errors import Problem, ScenarioError
from raysim.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from raysim.results.result import Result, TraceFormat
    from raysim.scenario.load import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The flags of the verb."""

    changes: tuple[str, ...] = ()
    seed: int | None = None
    out: Path | None = None
    until: str | None = None
    check: bool = False
    as_json: bool = False
    quiet: bool = False
    trace: TraceFormat = "perfetto"


def run(path: Path, options: RunOptions) -> bool:
    """Run a scenario, print it and write its folder.

    Returns
    -------
    bool
        True when a target is missed or the job does not fit.
    """
    from raysim.results import targets

    until_s = None if options.until is None else _duration(options.until)
    scenario = load(path, options.changes)
    started = terminal.wall_s()
    if until_s is not None:
        whole = _simulate(scenario, replace(options, trace="none"))
        scenario = shortened(scenario, whole.summary, until_s)
    result = _simulate(scenario, options)
    wall_s = terminal.wall_s() - started
    folder = _write(result, options)
    _print(result, folder, wall_s, options)
    return targets.missed(result.summary)


def _simulate(scenario: Scenario, options: RunOptions) -> Result:
    from raysim.run import run as simulate

    try:
        with terminal.progress(shown=not (options.quiet or options.as_json)) as progress:
            return simulate(
                scenario,
                seed=options.seed,
                record=options.trace != "none",
                check=options.check,
                progress=progress,
            )
    except Exception as error:
        error.add_note(f"seed {scenario.seed if options.seed is None else options.seed}")
        raise


def shortened(scenario: Scenario, summary: Mapping[str, Any], until_s: float) -> Scenario:
    """The scenario with only the steps that end before ``until_s``, by the whole run's mean pace.

    Raises
    ------
    ScenarioError
        Not even the first step ends by then.
    """
    run, step_s = summary["run"], summary["step"]["seconds"]
    startup_s = run["startup_seconds"]
    if run["seconds"] is not None:
        if run["seconds"] <= until_s:
            return scenario
        step_s = (run["seconds"] - startup_s) / run["steps"]
    steps = math.floor((until_s - startup_s) / step_s)
    if steps < 1:
        first = format_seconds(startup_s + step_s)
        raise ScenarioError(
            f"--until {format_seconds(until_s)}: the first step ends only after {first}"
        )
    return scenario.with_({"train.epochs": None, "train.tokens": None, "train.steps": steps})


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ScenarioError(f"--until {text}: {error}") from error


def load(path: Path, changes: tuple[str, ...]) -> Scenario:
    """The scenario at ``path`` with ``--set`` applied."""
    from raysim.scenario.load import load as load_scenario

    return load_scenario(path, parse_changes(changes))


def parse_changes(changes: tuple[str, ...]) -> dict[str, Any]:
    """``("a.b=1", "c=[2]")`` as ``{"a.b": 1, "c": [2]}``; values are YAML.

    Raises
    ------
    ScenarioError
        A change is not KEY=VALUE.
    """
    from raysim.scenario.yaml_text import parse_scalar

    parsed = {}
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not key.strip():
            raise ScenarioError(Problem(message=f"--set {change}: expected KEY=VALUE"))
        parsed[key.strip()] = parse_scalar(value)
    return parsed


def _write(result: Result, options: RunOptions) -> Path:
    try:
        return result.write(options.out, trace=options.trace)
    except OSError as error:
        target = options.out or result.folder()
        reason = f"cannot write {target}: {error.strerror or error}"
        raise ScenarioError(Problem(message=reason)) from error


def _print(result: Result, folder: Path, wall_s: float, options: RunOptions) -> None:
    from raysim.report import console
    from raysim.results.result import summary_json, written

    if options.as_json:
        terminal.say(summary_json(result.summary))
    elif options.quiet:
        terminal.say(result.summary["verdict"]["text"])
    else:
        wrote = (f"{folder}/", *written(folder))
        width = terminal.width()
        terminal.show(console.render(result.summary, width=width, wall_s=wall_s, wrote=wrote))
