"""Training scripts measured on one GPU, as they are, beside raysim's run of the same scripts.

A folder of ``raysim measure scripts``. The scripts really run, on virtual time, in this process;
their step is the one that most steps were. Needs torch and what the scripts import.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.simulation import Simulation
from raysim.measure.table import MeasuredRow, read_rows
from raysim.perf.constants import TrainingConstants
from raysim.perf.profile import Profile
from raysim.rayapi.launch.commands import read_command
from raysim.rayapi.launch.running import run_launched
from raysim.raycore.cluster import Cluster
from raysim.raylibs.report import LibraryReport
from raysim.scenario.profile import profile_at
from raysim.validate.gpu_steps import machine
from raysim.validate.points import Point

CASES = "script_cases.json"
PROFILE = "script_profile.yaml"
"""Of the machine on the day: hosts of equal names differ in speed."""
WHERE = Path("workloads/training/scripts")
METRICS = {
    "step": ("step time", "step_seconds"),
    "allocated": ("allocated", "gpu_mem_allocated_bytes"),
    "reserved": ("reserved", "gpu_mem_reserved_bytes"),
}
"""Quantities: the family's part, and what a run's report calls it."""


def script_points(validation: Path) -> Iterator[Point]:
    """Every measured script of every folder."""
    for path in sorted((validation / "data").glob(f"*/*/{CASES}")):
        yield from folder_points(path.parent, validation / WHERE)


def folder_points(folder: Path, scripts: Path) -> Iterator[Point]:
    """Of one folder, with the profile in it."""
    profile = profile_at(folder / PROFILE)
    for case in json.loads((folder / CASES).read_text(encoding="utf-8")):
        rows, name = _rows(folder, case), _name(folder, case)
        try:
            said = play(case["command"], scripts, folder, profile).metrics
        except Exception as error:  # noqa: BLE001  (a script's own, whatever it is, is an answer)
            yield _missing(name, case, f"{type(error).__name__}: {error}")
            continue
        yield from _points(name, case, rows, said)


def _name(folder: Path, case: Mapping[str, Any]) -> str:
    """Of a case on one GPU on one day."""
    gpu = folder.parent.name.removeprefix("nvidia-").partition("-")[0]
    return f"{case['name']}, {gpu} {folder.name}"


def _rows(folder: Path, case: Mapping[str, Any]) -> dict[str, MeasuredRow]:
    file = folder / f"script_steps_{case['role']}.csv"
    mine = (row for row in read_rows(file) if row.parameters["case"] == case["name"])
    return {str(row.parameters["quantity"]): row for row in mine}


def play(command: str, scripts: Path, folder: Path, profile: Profile) -> LibraryReport:
    """The report of ``python SCRIPT ARGUMENTS`` on the folder's machine.

    Raises
    ------
    Exception
        Whatever ended the script.
    """
    words = ["python", *shlex.split(command)]
    return played(words, scripts, machine(folder, profile), profile.training_constants())


def played(
    words: Sequence[str], folder: Path, cluster: ClusterSpec, constants: TrainingConstants
) -> LibraryReport:
    """The report of a command line, run in a folder on a cluster.

    Raises
    ------
    Exception
        Whatever ended the script.
    """
    here = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            session = run_launched(
                read_command(words), cluster=Cluster(Simulation(), cluster), training=constants
            )
    finally:
        os.chdir(here)
    report: LibraryReport
    (report,) = session.env.reports
    return report


def _points(
    name: str, case: Mapping[str, Any], rows: Mapping[str, MeasuredRow], said: Mapping[str, float]
) -> Iterator[Point]:
    for quantity, (family, metric) in METRICS.items():
        if quantity in rows:
            row = rows[quantity]
            yield Point(
                family=f"scripts/{family}", name=name, role=case["role"], unit=row.unit,
                predicted=said[metric], measured=row.value, low=row.low, high=row.high,
                repetitions=row.repetitions,
            )  # fmt: skip


def _missing(name: str, case: Mapping[str, Any], why: str) -> Point:
    return Point(family="scripts/step time", name=name, role=case["role"], left_out=why[:200])
