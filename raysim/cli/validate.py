"""``raysim validate``: predicted against measured, row by row."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.cli import terminal
from raysim.errors import Problem, ScenarioError
from raysim.units import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raysim.measure.workload import Workload
    from raysim.perf.profile import Profile
    from raysim.validate.points import Point
    from raysim.validate.replayed import Against

VALIDATION = Path("validation")
FAMILIES = ("ray_core", "ray_libraries", "ray_gpu")
"""Of workloads: each is compared with the newest folder that has its rows."""


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
    folders = _data(chosen.workloads, options)
    against = {family: Against.at(folder) for family, folder in folders.items()}
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
    report.write_report(every, out, _about(_before(every) | against, profile))
    if options.intervals:
        from raysim.perf.tables import FOLDER
        from raysim.validate.intervals import write_tables

        write_tables(every, FOLDER)
        terminal.say(f"Intervals: {FOLDER}")
    terminal.say(f"Report: {out / 'REPORT.md'}")


def _data(workloads: tuple[Workload, ...], options: ValidateOptions) -> dict[str, Path]:
    """The folder to compare each family of workloads with; filled first if asked."""
    from raysim.validate.replayed import newest

    families = dict.fromkeys(w.family for w in workloads)
    if not families:
        return {}
    if not options.real and options.address is None:
        return {f: options.against or newest(VALIDATION / "data", f) for f in families}
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
    return dict.fromkeys(families, folder)


def _before(points: Sequence[Point]) -> dict[str, Against]:
    """Where workloads compared earlier, of each family among ``points``, were measured."""
    from raysim.errors import CalibrationError
    from raysim.validate.replayed import Against, newest

    found: dict[str, Against] = {}
    for family in FAMILIES:
        if any(p.family.partition("/")[0] == family for p in points):
            with contextlib.suppress(CalibrationError):
                found[family] = Against.at(newest(VALIDATION / "data", family))
    return found


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise ScenarioError(Problem(key="--budget", message=str(error))) from None


def _about(against: Mapping[str, Against], profile: Profile | None) -> list[str]:
    said = []
    for family, each in against.items():
        hardware, folder = each.hardware, each.folder
        said.append(
            f"Workloads of {family} were measured on {hardware['cpu']} with {hardware['cores']} "
            f"cores and {hardware['memory_bytes'] / 2**30:.0f} GiB, Ray {each.versions['ray']}: "
            f"`data/{folder.parent.name}/{folder.name}`. "
            f"Profile: {_named(profile or each.profile())}."
        )
    if profile is not None and not said:
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
