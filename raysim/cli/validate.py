"""``raysim validate``: predicted against measured, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cli import terminal
from raysim.errors import Problem, ScenarioError
from raysim.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysim.measure.workload import Workload
    from raysim.perf.profile import Profile
    from raysim.validate.points import Point
    from raysim.validate.replayed import Against

VALIDATION = Path("validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateOptions:
    """As on the command line."""

    real: bool
    address: str | None
    against: Path | None
    profile: Path | None
    out: Path | None
    budget: str | None
    repeat: int
    intervals: bool = False


def validate(cases: tuple[str, ...], options: ValidateOptions) -> None:
    """Predict rows, compare them with measured ones, print the table and write the report.

    Raises
    ------
    ScenarioError
        A case, an option or the profile is wrong.
    CalibrationError
        Nothing was measured, or Ray is absent, or the folder is another machine's.
    """
    from raysim.scenario.profile import load_profile
    from raysim.validate import cases as known
    from raysim.validate import report
    from raysim.validate.replayed import Against

    chosen = known.choose(cases, VALIDATION)
    profile = load_profile(options.profile) if options.profile else None
    against = Against.at(_data(chosen.workloads, options)) if chosen.workloads else None
    points = known.compare(
        chosen, VALIDATION, against=against, profile=profile, told=lambda w: terminal.say(f"  {w}")
    )
    terminal.table(report.ROW_COLUMNS, report.row_cells(points), right=report.NUMBERS)
    terminal.say("")
    terminal.table(report.FAMILY_COLUMNS, report.family_cells(points), right=report.NUMBERS)
    for p in points:
        if p.left_out:
            terminal.say(f"left out: {p.name}: {p.left_out}")
    out = options.out or VALIDATION
    every = known.keep(points, out / known.COMPARED)
    report.write_report(every, out, _about(against or _before(every), profile))
    if options.intervals:
        from raysim.perf.tables import FOLDER
        from raysim.validate.intervals import write_tables

        write_tables(every, FOLDER)
        terminal.say(f"Intervals: {FOLDER}")
    terminal.say(f"Report: {out / 'REPORT.md'}")


def _data(workloads: tuple[Workload, ...], options: ValidateOptions) -> Path:
    """The folder to compare with; filled first if asked."""
    from raysim.validate.replayed import newest

    if not options.real and options.address is None:
        return options.against or newest(VALIDATION / "data")
    from raysim.measure import describe, slug
    from raysim.measure.replay import replay

    folder = options.against
    if folder is None:
        folder = VALIDATION / "data" / slug(describe()) / date.today().isoformat()
    where = "" if options.address is None else " --address"
    done = replay(
        workloads, folder, repetitions=options.repeat, budget_s=_seconds(options.budget),
        address=options.address, command=f"raysim validate --real{where}", told=terminal.say,
    )  # fmt: skip
    for name, why in done.failed.items():
        terminal.say(f"not measured: {name}: {why}")
    if done.left:
        terminal.say(
            f"{len(done.left)} not measured: the budget is spent; the same command goes on"
        )
    return folder


def _before(points: Sequence[Point]) -> Against | None:
    """Where workloads compared earlier were measured; None if there are none among ``points``."""
    from raysim.errors import CalibrationError
    from raysim.validate.replayed import Against, newest

    if all(p.family.partition("/")[0] != "ray_core" for p in points):
        return None
    try:
        return Against.at(newest(VALIDATION / "data"))
    except CalibrationError:
        return None


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise ScenarioError(Problem(key="--budget", message=str(error))) from None


def _about(against: Against | None, profile: Profile | None) -> list[str]:
    said = []
    if against is not None:
        hardware, folder = against.hardware, against.folder
        said.append(
            f"Workloads were measured on {hardware['cpu']} with {hardware['cores']} cores and "
            f"{hardware['memory_bytes'] / 2**30:.0f} GiB, Ray {against.versions['ray']}: "
            f"`data/{folder.parent.name}/{folder.name}`."
        )
        profile = profile or against.profile()
    if profile is not None:
        said.append(f"Profile: {_named(profile)}.")
    return said


def _named(profile: Profile) -> str:
    if not profile.ray:
        return "none: raysim's own constants, of another machine"
    said = f"{profile.name}, {len(profile.ray)} constants from {profile.source}"
    if profile.spread is None:
        return said
    factor = profile.interval(1.0)[1]
    return f"{said}; eight of ten rows should lie within a factor of {factor:.2f}"
