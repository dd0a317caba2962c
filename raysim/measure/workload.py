"""Workload files: Ray programs that run unmodified on real Ray and on the emulator.

Real counterpart: a benchmark script. Its first lines are comments: `# cluster: ...` (the grammar is
in ``scenario.declaration``), `# role: calibration` or `# role: validation`, and if wanted
`# repeat: N` (repetitions on real Ray) and `# compute: measured` (the time its own code takes
matters, not only that of Ray and of its sleeps). It prints one JSON line per row:
``{"row": "bag_of_sleeps", "value": 1.234, "unit": "s"}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.declaration import ClusterDeclaration, declared_by, in_running_order
from raysim.scenario.documents import did_you_mean

WORKLOADS = Path("validation/workloads")
"""Where they are, from the top of the repository."""
_KEY = re.compile(r"# (role|repeat|compute): *(.*)")
ROLES = ("calibration", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One file."""

    path: Path
    family: str
    """The folder: ``ray_core``."""
    role: Literal["calibration", "validation"]
    """Whether its rows may fix constants; chosen before anyone looked at a prediction."""
    declared: ClusterDeclaration
    repeat: int | None = None
    computes: bool = False

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def table(self) -> str:
        """Name of the table that holds its rows."""
        return f"replay_{self.family}_{self.role}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a workload's output."""

    row: str
    value: float
    unit: str


def read_workload(path: Path) -> Workload:
    """A workload from its header.

    Raises
    ------
    ScenarioError
        The header lacks a line or says something that is not known; all problems at once.
    """
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if said := _KEY.match(line):
            found.setdefault(said[1], (number, said[2].strip()))
    problems = []

    def wrong(key: str, message: str) -> None:
        where = Location(file=str(path), line=found.get(key, (1, ""))[0])
        problems.append(Problem(message=message, where=where, key=key))

    role = found.get("role", (0, ""))[1]
    if role not in ROLES:
        wrong("role", f"one line must say `# role: {ROLES[0]}` or `# role: {ROLES[1]}`")
    repeat = found.get("repeat", (0, "1"))[1]
    if not repeat.isdigit() or int(repeat) < 1:
        wrong("repeat", f"expected a whole number from 1, got {repeat!r}")
    compute = found.get("compute", (0, "declared"))[1]
    if compute not in {"declared", "measured"}:
        wrong("compute", f"expected declared or measured, got {compute!r}")
    if problems:
        raise ScenarioError(problems)
    return Workload(
        path=path, family=path.parent.name, declared=declared_by(path),
        role="calibration" if role == ROLES[0] else "validation",
        repeat=int(repeat) if "repeat" in found else None, computes=compute == "measured",
    )  # fmt: skip


def find(cases: Sequence[str], root: Path = WORKLOADS) -> list[Workload]:
    """Workloads whose ``family/name`` contains one of the words, or all; fewest clusters first.

    A case may also be a file or a folder of such files.

    Raises
    ------
    ScenarioError
        A case names nothing.
    """
    known = sorted(root.glob("*/*.py"))
    if not cases:
        chosen = known
    else:
        chosen = []
        for case in cases:
            chosen += _named(case, known)
    if not chosen:
        raise ScenarioError(f"{root}: no workloads there; run it at the top of the repository")
    return [read_workload(path) for path in in_running_order(dict.fromkeys(chosen))]


def _named(case: str, known: Iterable[Path]) -> list[Path]:
    path = Path(case)
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(path.glob("*.py"))
    names = {f"{p.parent.name}/{p.stem}": p for p in known}
    found = [p for name, p in names.items() if case in name]
    if not found:
        hint = did_you_mean(case, sorted(p.stem for p in known))
        raise ScenarioError(f"no workload {case}{hint}")
    return found


def read_output(lines: Iterable[str], workload: Workload) -> list[Row]:
    """Rows of what a workload printed; lines that are not JSON objects are its own affair.

    Raises
    ------
    ScenarioError
        A row lacks a key or a number, or two have one name, or there is none.
    """
    rows: dict[str, Row] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        try:
            said = json.loads(line)
            row = Row(row=str(said["row"]), value=float(said["value"]), unit=str(said["unit"]))
        except (ValueError, KeyError, TypeError) as error:
            message = f"printed {line!r}: {type(error).__name__} {error}; expected row, value, unit"
            raise _of(workload, message) from None
        if row.row in rows:
            raise _of(workload, f"printed two rows {row.row!r}")
        rows[row.row] = row
    if not rows:
        raise _of(workload, "printed no row: one JSON line each, with row, value and unit")
    return list(rows.values())


def _of(workload: Workload, message: str) -> ScenarioError:
    return ScenarioError(Problem(message=message, where=Location(file=str(workload.path))))
