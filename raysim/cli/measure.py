"""``raysim measure``: the real machine, into tables."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cli import terminal
from raysim.cli.watch import InterruptedRun
from raysim.errors import Problem, ScenarioError
from raysim.measure.machine import busy_share, describe, slug
from raysim.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from raysim.measure.session import Session

WHAT = {
    "gpu": "raysim.measure.gpu",
    "collectives": "raysim.measure.collectives",
    "ray": "raysim.measure.ray_core",
    "disk": "raysim.measure.disk",
    "step": "raysim.measure.training_step",
    "scripts": "raysim.measure.scripts",
    "memory": "raysim.measure.torch_memory",
    "host": "raysim.measure.host",
}
"""Name to the module whose ``measure(session)`` fills its tables."""

log = logging.getLogger(__name__)
BUSY = 0.1
"""From here on a person is told that others use the CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """As on the command line."""

    out: Path | None
    budget: str
    quick: bool
    device: str | None
    backend: str | None
    ranks: str | None
    cases: Path | None = None
    quiet: bool = False


def measure(what: str, options: MeasureOptions) -> None:
    """Fill the tables of ``what``.

    Raises
    ------
    InterruptedRun
        By Ctrl-C; rows are kept.
    ScenarioError
        An option cannot be read.
    CalibrationError
        Hardware or a package is absent, or the folder is another machine's.
    """
    if what not in WHAT:
        raise _wrong("WHAT", f"must be one of {', '.join(WHAT)}, got {what!r}")
    try:
        budget_s = parse_seconds(options.budget)
    except ValueError as error:
        raise _wrong("--budget", str(error)) from None
    session = _session(what, options, budget_s)
    busy = busy_share()
    session.notes = f"CPUs {busy:.0%} busy before"
    if busy > BUSY:
        terminal.complain([f"Others keep the CPUs {busy:.0%} busy: what is measured will scatter"])
    fill: Callable[[Session], None] = import_module(WHAT[what]).measure
    start_s = terminal.wall_s()
    try:
        fill(session)
    except KeyboardInterrupt:
        raise InterruptedRun(
            f"Interrupted; what was measured is in {session.folder}; the same command goes on."
        ) from None
    if os.environ.get("RANK", "0") != "0":  # under torchrun rank 0 speaks
        return
    if options.quiet:
        terminal.say(str(session.folder))
        return
    taken = format_seconds(terminal.wall_s() - start_s)
    terminal.say(f"{session.measured} rows measured in {taken}, {session.kept} were there before")
    if session.left_out:
        terminal.say(f"{len(session.left_out)} left out, with reasons above")
    if session.left:
        terminal.say(f"{session.left} not measured: the budget is spent; the same command goes on")
    terminal.say(f"Tables: {session.folder}")
    if what == "host":
        _say_host_speed(session.folder)


def _say_host_speed(folder: Path) -> None:
    """What a profile of this host would hold."""
    from raysim.calibrate.direct_host import host_speed

    speed = host_speed(folder)
    if speed is not None:
        terminal.say(f"In a profile: training: {{host_speed: {speed.value}}}")


def _session(what: str, options: MeasureOptions, budget_s: float) -> Session:
    from raysim.measure.session import Budget, Session

    folder = options.out
    if folder is None:
        folder = Path("validation/data") / slug(describe()) / date.today().isoformat()
    return Session(
        folder=folder,
        budget=Budget(budget_s),
        command=_command(what, options),
        quick=options.quick,
        device=options.device,
        backend=options.backend,
        ranks=_ranks(options.ranks),
        cases=options.cases,
        say=_unsaid if options.quiet else terminal.say,
    )


def _unsaid(line: str) -> None:
    """Of a quiet session."""
    log.info("%s", line)


def _command(what: str, options: MeasureOptions) -> str:
    """The command as it is kept beside the rows: without the folder, which may name a machine."""
    words = ["raysim", "measure", what, "--budget", options.budget]
    words += ["--quick"] * options.quick
    for name in ("device", "backend", "ranks"):
        value = getattr(options, name)
        words += [f"--{name}", value] if value else []
    return shlex.join(words)


def _ranks(text: str | None) -> tuple[int, ...]:
    try:
        ranks = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        ranks = (0,)
    if any(n < 2 for n in ranks):
        raise _wrong("--ranks", f"expected world sizes of at least 2, such as 2,4, got {text!r}")
    return ranks


def _wrong(key: str, message: str) -> ScenarioError:
    return ScenarioError(Problem(key=key, message=message))
