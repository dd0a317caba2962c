"""Training steps measured on one GPU beside raysim's predictions: time, peaks of memory.

A folder of ``raysim measure step`` whose ``meta.yaml`` names a GPU. The time is that of steps which
wait for nothing in between; the peaks are torch's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.calibrate.rows import Measured, Role, RowKey
from raysim.errors import CalibrationError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.measure.table import read_meta, read_rows
from raysim.perf.profile import OWN, Profile
from raysim.scenario.profile import on_cluster, profile_at
from raysim.training.tower import StepOutcome, simulate
from raysim.validate.points import Point
from raysim.validate.training_cases import PROFILE, read_cases
from raysim.validate.training_plans import plan_of

PHASE = "step free"
FITTED = ("sustained_share", "host_speed")
"""Constants that only steps show."""
PEAKS = frozenset({"allocated", "reserved"})


def gpu_folders(validation: Path) -> Iterator[Path]:
    """Folders of ``validation/data`` whose steps were measured on a GPU, oldest first."""
    for path in sorted((validation / "data").glob("*/*/training_cases.json")):
        if read_meta(path.parent)["hardware"]["gpus"]:
            yield path.parent


def machine(folder: Path, profile: Profile) -> ClusterSpec:
    """One GPU of the folder's kind in a host of the catalog that has such."""
    name = read_meta(folder)["hardware"]["gpus"][0]["name"]
    gpu = catalog.gpu(name)
    fits = (n for n in map(catalog.node, catalog.names("node")) if n.gpu == gpu)
    node = replace(next(fits), gpu_count=1)
    return on_cluster(ClusterSpec(groups=(NodeGroup(name="gpu", node=node, count=1),)), profile)


def play(case: Mapping[str, Any], cluster: ClusterSpec, profile: Profile = OWN) -> StepOutcome:
    """The case's steady step, with its memory."""
    plan = replace(plan_of(case), constants=profile.training_constants())
    return simulate(plan, cluster, simulation=Simulation(), memory=True)


def step_rows(folder: Path) -> list[Measured]:
    """Steps without waits of the folder, calibration rows first; the key is (case, phase).

    Raises
    ------
    CalibrationError
        The folder has no such calibration rows.
    """
    found = _rows(folder)
    if not any(row.role == "calibration" for row in found):
        raise CalibrationError(
            f"{folder}: no row {PHASE!r} in training_steps_calibration.csv; "
            "`raysim measure step --cases FILE` makes them on a GPU, of cases with "
            '"role": "calibration" (raysim/measure/README.md)'
        )
    return found


def _rows(folder: Path) -> list[Measured]:
    roles: tuple[Role, ...] = ("calibration", "validation")
    return [
        Measured(
            key=(row.parameters["case"], PHASE), role=role, value=row.value, unit=row.unit,
            repetitions=row.repetitions, low=row.low, high=row.high, family="gpu_steps",
        )
        for role in roles
        if (file := folder / f"training_steps_{role}.csv").exists()
        for row in read_rows(file)
        if row.parameters["phase"] == PHASE
    ]  # fmt: skip


def predict_steps(
    folder: Path, cases: Iterable[Mapping[str, Any]], profile: Profile
) -> dict[RowKey, float]:
    """Seconds of the cases' steps, by (case, phase)."""
    cluster = machine(folder, profile)
    return {
        (case["name"], PHASE): play(case, cluster, profile).steady_step_ns * 1e-9 for case in cases
    }


def gpu_step_points(validation: Path) -> Iterator[Point]:
    """Every measured step and peak; nothing where nothing was measured."""
    for folder in gpu_folders(validation):
        yield from folder_points(folder)


def folder_points(folder: Path) -> Iterator[Point]:
    """Of one folder, with the profile in it."""
    profile = profile_at(folder / PROFILE)
    cluster = machine(folder, profile)
    records = json.loads((folder / "training_records.json").read_text(encoding="utf-8"))
    times = {row.key[0]: row for row in _rows(folder)}
    for name, case in read_cases(folder).items():
        if name in times:
            outcome = play(case, cluster, profile)
            row = times[name]
            yield Point(
                family="gpu_steps/step time", name=name, role=row.role, unit="s",
                predicted=outcome.steady_step_ns * 1e-9, measured=row.value, low=row.low,
                high=row.high, repetitions=row.repetitions,
            )  # fmt: skip
            yield from _peaks(name, row.role, outcome, records[name][0].get("peak", {}))


def _peaks(name: str, role: Role, outcome: StepOutcome, real: Mapping[str, int]) -> Iterator[Point]:
    memory = outcome.memory[0]
    for peak in sorted(real.keys() & PEAKS):
        yield Point(
            family=f"gpu_steps/{peak}", name=name, role=role, unit="bytes",
            predicted=getattr(memory, f"{peak}_bytes"), measured=real[peak],
        )  # fmt: skip
