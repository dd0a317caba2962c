"""``raysim run``: predict, print, write."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.cli import terminal
from raysim.cli.command import LAUNCHERS
from raysim.cli.logs import Phases
from raysim.cli.mistakes import SHELL, expect_scenario
from raysim.cli.watch import InterruptedRun, Watch, watching
from raysim.errors import Problem, ScenarioError
from raysim.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from raysim.results.result import Result, TraceFormat
    from raysim.scenario.load import Scenario
    from raysim.scenario.program import ProgramScenario


log = logging.getLogger(__name__)


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
    memory_snapshot: bool = False

    @property
    def alone(self) -> bool:
        """Nothing but the verdict, or the summary, is printed."""
        return self.quiet or self.as_json


def run(path: Path, options: RunOptions) -> bool:
    """Run a scenario, print the answer, write its folder.

    Returns
    -------
    bool
        True when a target is missed, the job does not fit or the program fails.

    Raises
    ------
    InterruptedRun
        By Ctrl-C.
    """
    from raysim.results import targets

    scenario = scenario_of(path, options)
    watch = Watch()
    kept = ""
    try:
        with watching(watch, shown=not options.alone):
            started_s = terminal.wall_s()
            result = _predict(scenario, options, watch)
        folder = options.out or result.folder()
        kept = f"{folder} is incomplete."
        _print(result, terminal.wall_s() - started_s, options)
        with watching(watch, shown=not options.alone):
            watch.phase(f"writing {folder}")
            _write(result, options)
    except KeyboardInterrupt:
        said = kept or _until_there(scenario, watch)
        raise InterruptedRun(f"{watch.interrupted()} {said}") from None
    log.info("wrote %s", folder)
    if not options.alone:
        _print_written(folder)
    return targets.missed(result.summary)


def _until_there(scenario: Any, watch: Watch) -> str:
    """What an interrupted run leaves, and how to have what it had come to."""
    from raysim.scenario.load import Scenario

    if not isinstance(scenario, Scenario) and watch.reached_s >= 1.0:
        return f"Nothing was written; --until {_until(watch.reached_s)} predicts up to there."
    return "Nothing was written."


def _until(seconds: float) -> str:
    """A duration as the flag takes it."""
    return format_seconds(seconds).replace(" ", "")


def scenario_of(path: Path, options: RunOptions) -> Any:
    """What is to be run: a scenario with the flags in it."""
    from raysim.scenario.load import Scenario
    from raysim.scenario.script import limits

    if options.memory_snapshot and options.trace == "none":
        raise ScenarioError("--memory-snapshot needs the records that --no-trace leaves out")
    if str(path) in LAUNCHERS:
        return _launched([str(path), *options.args], options)
    if path.suffix == ".py" and not path.is_dir():
        return _script(path, options)
    if path.suffix in SHELL and path.is_file():
        from raysim.scenario.shell_script import launch_of

        return _launched(launch_of(path, options.args), options)
    scenario = load(path, _with_flags(path, options))
    if not isinstance(scenario, Scenario) and options.until is not None:
        return scenario.with_(limits(options.until))
    return scenario


def _predict(scenario: Any, options: RunOptions, watch: Watch) -> Result:
    from raysim.scenario.load import Scenario
    from raysim.scenario.script import limits

    if not isinstance(scenario, Scenario):
        if options.memory_snapshot:
            raise ScenarioError("--memory-snapshot goes with a training job, not with a program")
        return _play(scenario, options, watch)
    steps = limits(options.until).get("steps")
    if steps:
        scenario = _of_steps(scenario, steps)
    elif steps is None and options.until is not None:
        until_s = _duration(options.until)
        whole = _simulate(scenario, replace(options, trace="none"), watch)
        scenario = shortened(scenario, whole.summary, until_s)
    return _simulate(scenario, options, watch)


def _script(path: Path, options: RunOptions, launcher: str | None = None) -> ProgramScenario:
    """The scenario that the flags describe."""
    from raysim.scenario.script import script_scenario

    expect_scenario(path)
    return script_scenario(
        path, cluster=options.cluster, compute=options.compute, profile=options.profile,
        until=options.until, args=options.args, launcher=launcher,
        changes=parse_changes(options.changes),
    )  # fmt: skip


def _launched(words: list[str], options: RunOptions) -> ProgramScenario:
    """Of a launcher's command line, such as ``torchrun --nproc-per-node 8 train.py``."""
    from raysim.rayapi.launch.commands import read_command

    command = read_command(words)
    given = replace(options, args=command.args)
    return _script(command.file(Path()), given, shlex.join(command.words))


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


def _play(scenario: ProgramScenario, options: RunOptions, watch: Watch) -> Result:
    """Run a program; what it prints goes to standard error where ours must stand alone."""
    aside = contextlib.redirect_stdout(sys.stderr) if options.alone else contextlib.nullcontext()
    scenario = replace(scenario, job=replace(scenario.job, stops=options.until is None))
    with aside:
        result = _simulate(scenario, options, watch)
    told = result.summary["program"]
    if told["exit"] == "exception":
        terminal.complain([told["traceback"]])
    return result


def _simulate(scenario: Scenario | ProgramScenario, options: RunOptions, watch: Watch) -> Result:
    from raysim.run import run as simulate

    try:
        return simulate(
            scenario,
            seed=options.seed,
            record=options.trace != "none",
            check=options.check,
            progress=Phases(),
            watch=watch.follow,
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
    return _of_steps(scenario, steps)


def _of_steps(scenario: Scenario, steps: int) -> Scenario:
    return scenario.with_({"train.epochs": None, "train.tokens": None, "train.steps": steps})


def _duration(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ScenarioError(f"--until {text}: {error}") from error


def load(path: Path, changes: tuple[str, ...]) -> Any:
    """The scenario at ``path`` with ``--set`` applied."""
    from raysim.scenario.load import load as load_scenario

    expect_scenario(path, program=False)
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
    with terminal.writing(options.out or result.folder()):
        return result.write(
            options.out, trace=options.trace, memory_snapshot=options.memory_snapshot
        )


def _print(result: Result, wall_s: float, options: RunOptions) -> None:
    """The answer, before its folder is written: that may take longer than the run."""
    from raysim.report import console
    from raysim.results.result import summary_json

    if options.as_json:
        terminal.say(summary_json(result.summary))
    elif options.quiet:
        terminal.say(result.summary["verdict"]["text"])
    else:
        terminal.show(console.render(result.summary, width=terminal.width(), wall_s=wall_s))
    sys.stdout.flush()


def _print_written(folder: Path) -> None:
    from raysim.report import console
    from raysim.results.result import written

    terminal.show(console.wrote((f"{folder}/", *written(folder)), width=terminal.width()))
