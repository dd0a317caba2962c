"""Training scripts as their users run them, on this machine: time of a step, memory, operators.

A script runs unmodified in a process of its own, as ``python SCRIPT ARGUMENTS`` would run it, and
is ended when enough of its optimizer steps were seen (``script_watch``). ``raysim run python
SCRIPT`` predicts the same script.
"""

from __future__ import annotations

import json
import multiprocessing
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from raysim.errors import CalibrationError
from raysim.measure.machine import Disturbance
from raysim.measure.script_watch import watch
from raysim.measure.session import Session, needs
from raysim.measure.table import MeasuredTable, read_json, write_json

COLUMNS = ("case", "quantity")
PRELOADED = (
    "torch", "torch.optim", "torch._dynamo", "transformers", "transformers.trainer", "accelerate",
    "peft", "lightning",
)  # fmt: skip
"""What takes seconds to import and touches no GPU, where it is installed."""
TIMEOUT_S = 240.0
"""Most of a case: what is compiled takes a minute before its first step."""
OPERATORS = "script_operators.json"
CASES = "script_cases.json"


def measure(session: Session) -> None:
    """Fill ``script_steps_<role>.csv``, one row for each quantity of a case.

    ``session.cases`` names a JSON list of ``{name, command, role}``; ``command`` is a script, as a
    path from the list's folder, and its arguments; with ``profile`` the operators of a step are
    listed too (``script_operators.json``). Quantities are ``step`` (seconds between
    optimizer steps after the warm-up), ``allocated`` and ``reserved`` (peaks of torch's allocator),
    ``driver`` (what the GPU has in use beside them), ``clock`` and ``power``, ``others`` and
    ``stolen`` (cores that other processes and the hypervisor took).

    Raises
    ------
    CalibrationError
        A package is absent, the file cannot be read, or every case failed.
    """
    needs("torch", "scripts")
    cases = read_cases(session.cases)
    operators = read_json(session.folder / OPERATORS)
    for case in cases:
        table = session.table(f"script_steps_{case['role']}", COLUMNS)
        if {"case": case["name"], "quantity": "step"} in table:
            session.kept += 1
        elif session.budget.left_s() <= 0:
            session.left += 1
        else:
            _measure(session, table, case, operators)
    if session.left_out and not session.measured and not session.kept:
        raise CalibrationError(f"measure scripts: every case failed; {session.left_out[-1]}")
    public = [{k: case[k] for k in ("name", "command", "role")} for case in cases]
    write_json(session.folder / CASES, public)


def read_cases(path: Path | None) -> list[dict[str, Any]]:
    """Cases of a file, ``folder`` of each being where its script is.

    Raises
    ------
    CalibrationError
        There is none, it cannot be read, or a case lacks a key.
    """
    if path is None:
        raise CalibrationError("measure scripts: --cases FILE says which: [{name, command, role}]")
    try:
        cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CalibrationError(f"{path}: {error}") from None
    for case in cases:
        missing = {"name", "command", "role"} - set(case)
        if missing:
            name = case.get("name", "a case")
            raise CalibrationError(f"{path}: {name} lacks {', '.join(sorted(missing))}")
        case["folder"] = str(path.resolve().parent)
    return cases


def _measure(
    session: Session, table: MeasuredTable, case: Mapping[str, Any], operators: dict[str, Any]
) -> None:
    """One case: its rows are on the disk when this returns."""
    disturbance = Disturbance()
    found = _run(case)
    if "error" in found:
        session.left_out.append(f"scripts {case['name']}: {found['error']}")
        session.say(f"left out: {session.left_out[-1]}")
        return
    rows = [*quantities(found), *((who, [n], "cores") for who, n in disturbance.cores().items())]
    with table:
        for quantity, values, unit in rows:
            row = table.add({"case": case["name"], "quantity": quantity}, values, unit)
            session.say(f"scripts {case['name']} {quantity}: {row.value:.4g} {unit}")
    session.measured += 1
    if found["operators"]:
        operators[case["name"]] = found["operators"]
        write_json(session.folder / OPERATORS, operators)


def quantities(found: Mapping[str, Any]) -> Iterator[tuple[str, list[float], str]]:
    """Rows of what a watched script answered."""
    yield "step", found["steps"], "s"
    for name, size in found["peak"].items():
        yield name, [size], "bytes"
    for name, unit in (("clock_mhz", "MHz"), ("power_w", "W")):
        if found[name] is not None:
            yield name.partition("_")[0], [found[name]], unit


def _run(case: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`watch` found, or ``error``."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([m for m in PRELOADED if find_spec(m.partition(".")[0])])
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "found.json")
        script, *arguments = shlex.split(case["command"])
        process = server.Process(
            target=watch, args=(case["folder"], script, arguments, target),
            kwargs={"lists": bool(case.get("profile"))},
        )  # fmt: skip
        process.start()
        process.join(TIMEOUT_S)
        late = process.is_alive()
        process.kill()
        if target.exists():
            found: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
            return found
        return {"error": f"no answer in {TIMEOUT_S:g} s" if late else f"exit {process.exitcode}"}
