"""Workload files on real Ray: each several times, their rows kept with their spread.

By default on a local cluster as the file declares it; at an address, on the cluster that is there.
A workload's rows are appended when its last repetition is done; those already in the folder are
not run again, so that a run that was stopped, or whose budget ended, goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from raysim.errors import CalibrationError
from raysim.measure.local_cluster import LocalCluster, Printed, run_program
from raysim.measure.table import MeasuredTable
from raysim.measure.workload import Row, Workload, read_output
from raysim.scenario.declaration import wants_dashboard

REPETITIONS = 3
PARAMETERS = ("workload", "row")
Told = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Replayed:
    """What a replay did."""

    measured: list[str] = field(default_factory=list)
    """Names of workloads."""
    known: list[str] = field(default_factory=list)
    """Already in the folder."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why, by name."""
    left: list[str] = field(default_factory=list)
    """For which the budget was too short."""


def replay(
    workloads: Sequence[Workload],
    folder: Path,
    *,
    repetitions: int = REPETITIONS,
    budget_s: float | None = None,
    address: str | None = None,
    command: str,
    told: Told = lambda _: None,
) -> Replayed:
    """Run workloads on real Ray; rows go to ``replay_<family>_<role>.csv`` of the folder.

    Parameters
    ----------
    workloads
        In the order to run them; neighbours of one declaration share a local cluster.
    folder
        Of the tables.
    repetitions
        Of workloads that do not say how many.
    budget_s
        No workload is begun later than this.
    address
        Of a running cluster; None: local clusters are started as declared.
    command
        For ``meta.yaml``.
    told
        Hears one line about each workload.

    Raises
    ------
    CalibrationError
        Ray is not installed, or the folder is of another machine.
    """
    done, began_s = Replayed(), time.monotonic()
    with ExitStack() as stack:
        local = None if address is not None else stack.enter_context(LocalCluster())
        tables = {
            (w.family, w.role): stack.enter_context(
                MeasuredTable(folder, w.table, PARAMETERS, command=command)
            )
            for w in workloads
        }
        for workload in workloads:
            table = tables[workload.family, workload.role]
            if any(row.parameters["workload"] == workload.name for row in table):
                done.known.append(workload.name)
                continue
            if address is not None and workload.declared.disturbed:
                done.failed[workload.name] = "kills or adds nodes: only on a local cluster"
                continue
            if budget_s is not None and time.monotonic() - began_s > budget_s:
                done.left.append(workload.name)
                continue
            start_s = time.monotonic()
            try:
                samples = _samples(workload, workload.repeat or repetitions, local, address)
            except CalibrationError as error:
                done.failed[workload.name] = str(error)
                told(f"{workload.name}: {error}")
                continue
            for (name, unit), values in samples.items():
                table.add({"workload": workload.name, "row": name}, values, unit)
            done.measured.append(workload.name)
            told(f"{workload.name}: {len(samples)} rows, {time.monotonic() - start_s:.1f} s")
    return done


def _samples(
    workload: Workload, repetitions: int, local: LocalCluster | None, address: str | None
) -> dict[tuple[str, str], list[float]]:
    """Values of each row and unit, of every repetition."""
    samples: dict[tuple[str, str], list[float]] = {}
    for _ in range(repetitions):
        if local is not None:
            local.want(workload.declared, dashboard=wants_dashboard(workload.path))
            printed = local.run(workload.path)
        else:
            assert address is not None
            printed = run_program(workload.path, address)
        for row in _rows(workload, printed):
            samples.setdefault((row.row, row.unit), []).append(row.value)
    if any(len(values) != repetitions for values in samples.values()):
        raise CalibrationError("its repetitions printed different rows")
    return samples


def _rows(workload: Workload, printed: Printed) -> Iterable[Row]:
    if printed.code:
        last = printed.errors.strip().splitlines()[-1:] or ["nothing on standard error"]
        how = "was stopped" if printed.code < 0 else f"exited with {printed.code}"
        raise CalibrationError(f"{how} after {printed.seconds:.0f} s: {last[0]}")
    return read_output(printed.lines, workload)
