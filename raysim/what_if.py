"""The middle of a Ray program's run: saved, or split into what else could happen from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raysim.branching import Branches, Ending
from raysim.errors import ScenarioError
from raysim.kernel.simulation import what_exists_stays
from raysim.report.branches import branch_table
from raysim.results.result import Result, yaml_text
from raysim.run import run
from raysim.scenario.changes import Asked, change_of
from raysim.scenario.load import AnyScenario
from raysim.scenario.program import ProgramScenario
from raysim.scenario.saved import MEASURED, may_be_saved, saved
from raysim.units import format_seconds, parse_seconds, to_ns
from raysim.workloads.moment import Change, Mark, Pause, Running


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A run, and what would have become of it."""

    at_s: float
    """When it was split."""
    baseline: Result
    branches: Mapping[str, Result]
    """By change; those that came to an end."""
    failed: Mapping[str, Ending] = field(default_factory=dict)
    """By change: why there is no result."""

    def __str__(self) -> str:
        """What differs, by columns: the baseline, and each change."""
        heads, rows = self.table()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        return "\n".join(
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in (heads, *rows)
        )

    @property
    def is_measured(self) -> bool:
        """The script's own code is timed by the stopwatch, in each branch anew."""
        job = getattr(self.baseline.scenario, "job", None)
        return job is not None and job.compute == MEASURED

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of what differs."""
        scenario = self.baseline.scenario
        assert isinstance(scenario, ProgramScenario), "only programs are split"
        summaries = {name: result.summary for name, result in self.branches.items()}
        return branch_table(self.baseline.summary, summaries, scenario.metrics)


class _Reached(BaseException):
    """The moment: nothing of the run is wanted after it. No program catches it."""


def what_if(
    scenario: AnyScenario,
    changes: Sequence[str] | Mapping[str, Asked],
    *,
    at: str | None = None,
    processes: int | None = None,
    record: bool = False,
    check: bool = False,
    save: str | Path | None = None,
) -> WhatIf:
    """Play a Ray program to a moment, fork there, and go on for every change, and without.

    Parameters
    ----------
    scenario
        From ``raysim.load``; also a saved run.
    changes
        What happens then: ``"fail_node=2"``, ``"preempt=3,notice=30s"``,
        ``"cluster.worker.max_replicas=4"``; or by name ``{"name": {"fail_node": 2}}``.
    at
        The moment, such as ``"3h"``; by default where a saved run stands.
    processes
        Branches that run at one time; by default as many as there are processors.
    record, check
        As of ``raysim.run``.
    save
        Also write the run, as it stands at the moment, to this file.

    Returns
    -------
    WhatIf
        ``print`` shows what differs. A branch that fails loses nothing of the others.

    Raises
    ------
    ScenarioError
        A change is wrong, the run ends before the moment, or the program has threads.

    Examples
    --------
    >>> import raysim
    >>> job = raysim.load("scenarios/ray_shuffle_spills")
    >>> answer = raysim.what_if(job, ["fail_node=1"], at="10s")
    >>> answer.branches["fail_node=1"].summary["run"]["virtual_seconds"] > 100
    True
    """
    program, at_ns = _program(scenario), _moment_ns(scenario, at)
    asked = changes if isinstance(changes, Mapping) else {text: text for text in changes}
    ready = {name: change_of(program, change, at_ns) for name, change in asked.items()}
    if save is not None:
        may_be_saved(program)
    branches = Branches(list(ready), processes=processes)

    def split(running: Running) -> None:
        if save is not None:
            _write(program, running.mark, Path(save))
        running.apply(_own_change(branches.split(), ready))

    pause = Pause(at_ns=at_ns, then=split)
    baseline = branches.play(lambda: run(program, record=record, check=check, pause=pause))
    if not branches.have_split:
        raise ScenarioError(_over_before(baseline, at_ns))
    endings = {name: branches.endings[name] for name in ready}
    return WhatIf(
        at_s=at_ns / 1e9,
        baseline=baseline,
        branches={name: end.value for name, end in endings.items() if not end.failure},
        failed={name: end for name, end in endings.items() if end.failure},
    )


def _own_change(name: str | None, ready: Mapping[str, Change]) -> Change:
    """A branch's; what it shares with others is not looked at, which would copy every page."""
    if name is None:
        return Change()
    what_exists_stays(look=False)
    return ready[name]


def save(scenario: AnyScenario, path: str | Path, *, at: str | None = None) -> Path:
    """Play a Ray program to a moment and save it as it stands there.

    The file is the scenario, resolved, with the moment and a digest of all that has happened.
    ``raysim.load`` and ``raysim.run`` take it as any scenario: the run is played again to the
    moment, found to be the same or refused, and goes on.

    Parameters
    ----------
    scenario
        From ``raysim.load``.
    path
        File to write.
    at
        The moment, such as ``"3h"``; by default where a saved run stands.

    Raises
    ------
    ScenarioError
        The run ends before, or times its own code, which is never the same twice.
    """
    program, at_ns = _program(scenario), _moment_ns(scenario, at)
    may_be_saved(program)

    def stop(running: Running) -> None:
        _write(program, running.mark, Path(path))
        raise _Reached

    try:
        ended = run(program, record=False, pause=Pause(at_ns=at_ns, then=stop))
    except _Reached:
        return Path(path)
    raise ScenarioError(_over_before(ended, at_ns))


def _program(scenario: AnyScenario) -> ProgramScenario:
    if isinstance(scenario, ProgramScenario):
        return scenario
    raise ScenarioError(
        f"{scenario.name}: a training job is one steady step, multiplied: nothing of it is under "
        "way at a moment. Change it from its beginning with --set and compare the runs; a "
        "`trainer:` job, which Ray Train controls, can be split"
    )


def _moment_ns(scenario: AnyScenario, at: str | None) -> int:
    if at is None:
        where = scenario.saved_at if isinstance(scenario, ProgramScenario) else None
        if where is None:
            raise ScenarioError(f"{scenario.name} is no saved run: say when, as --at 3h")
        return where.at_ns
    try:
        return to_ns(parse_seconds(at))
    except ValueError as error:
        raise ScenarioError(f"--at {at}: {error}") from error


def _over_before(result: Result, at_ns: int) -> str:
    ended = format_seconds(result.summary["run"]["virtual_seconds"])
    return f"--at {format_seconds(at_ns / 1e9)}: the run is over before, after {ended}"


def _write(program: ProgramScenario, mark: Mark, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml_text(saved(program, mark, path.parent))
    path.write_text(text, encoding="utf-8", newline="\n")
