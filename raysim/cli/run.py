"""``raysim run``: predict, print, write."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
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
    from raysim.scenario.program import ProgramScenario


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The flags of the verb."""

    changes: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    cluster: Path | None = None
    compute: str | None = None
    profile: Path | None = None
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
        True when a target is missed, the job does not fit or the program fails.
    """
    from raysim.results import targets
    from raysim.scenario.program import ProgramScenario

    if path.suffix == ".py" and not path.is_dir():
        scenario: Any = _script(path, options)
    else:
        scenario = load(path, _with_flags(path, options))
    started = terminal.wall_s()
    if isinstance(scenario, ProgramScenario):
        result = _play(scenario, options)
    else:
        if options.until is not None:
            until_s = _duration(options.until)
            whole = _simulate(scenario, replace(options, trace="none"))
            scenario = shortened(scenario, whole.summary, until_s)
        result = _simulate(scenario, options)
    wall_s = terminal.wall_s() - started
    folder = _write(result, options)
    _print(result, folder, wall_s, options)
    return targets.missed(result.summary)


def _script(path: Path, options: RunOptions) -> ProgramScenario:
    """The scenario that the flags describe."""
    from raysim.scenario.script import script_scenario

    return script_scenario(
        path, cluster=options.cluster, compute=options.compute, profile=options.profile,
        until=options.until, args=options.args, changes=parse_changes(options.changes),
    )  # fmt: skip


def _with_flags(path: Path, options: RunOptions) -> tuple[str, ...]:
    """``--set`` changes, with what a scenario takes from other flags.

    Raises
    ------
    ScenarioError
        A flag that only a script takes.
    """
    if options.cluster is not None:
        raise ScenarioError(f"--cluster goes with a script; {path} says its own cluster")
    given = list(options.changes)
    if options.profile is not None:
        folder = path if path.is_dir() else path.parent
        given.append(f"profile={json.dumps(os.path.relpath(options.profile, folder))}")
    if options.compute is not None:
        given.append(f"script.compute={options.compute}")
    if options.args:
        given.append(f"script.args={json.dumps(list(options.args))}")
    return tuple(given)


def _play(scenario: ProgramScenario, options: RunOptions) -> Result:
    """Run a program; what it prints goes to standard error where ours must stand alone."""
    if options.until is not None and scenario.spec.until != _duration(options.until):
        scenario = scenario.with_({"until": options.until})
    alone = options.quiet or options.as_json
    with contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext():
        result = _simulate(scenario, options)
    told = result.summary["program"]
    if told["exit"] == "exception":
        terminal.complain([told["traceback"]])
    return result


def _simulate(scenario: Scenario | ProgramScenario, options: RunOptions) -> Result:
    from raysim.run import run as simulate
    from raysim.scenario.program import ProgramScenario

    program = isinstance(scenario, ProgramScenario)
    shown = not (options.quiet or options.as_json)
    try:
        with (
            terminal.progress(shown=shown and not program) as progress,
            terminal.watching(shown=shown and program) as watch,
        ):
            return simulate(
                scenario,
                seed=options.seed,
                record=options.trace != "none",
                check=options.check,
                progress=progress,
                watch=watch,
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


def load(path: Path, changes: tuple[str, ...]) -> Any:
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
