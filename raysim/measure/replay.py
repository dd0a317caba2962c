"""Workload files on real Ray: each several times, their rows kept with their spread.

By default on a local cluster as the file declares it; at an address, on the cluster that is there.
A workload's rows are appended when its last repetition is done; those already in the folder are
not run again, so that a run that was stopped, or whose budget ended, goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim.errors import CalibrationError, ScenarioError
from raysim.measure.local_cluster import LocalCluster, Printed, run_program
from raysim.measure.machine import installed
from raysim.measure.table import MeasuredTable
from raysim.measure.workload import Row, Workload, read_output
from raysim.scenario.declaration import wants_dashboard

REPETITIONS = 3
PARAMETERS = ("workload", "row")
CLUSTER = "cluster.json"
"""Beside the tables, of workloads that ran at an address: the nodes of that cluster."""
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
        if address is not None:
            local = None
            keep_cluster(nodes_at(address), folder)
        else:
            local = stack.enter_context(LocalCluster())
        tables = {
            name: stack.enter_context(MeasuredTable(folder, name, PARAMETERS, command=command))
            for name in sorted({w.table for w in workloads})
        }
        for workload in workloads:
            table = tables[workload.table]
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
            except (CalibrationError, ScenarioError) as error:
                done.failed[workload.name] = str(error)
                told(f"{workload.name}: {error}")
                continue
            for (name, unit), values in samples.items():
                table.add({"workload": workload.name, "row": name}, values, unit)
            done.measured.append(workload.name)
            told(f"{workload.name}: {len(samples)} rows, {time.monotonic() - start_s:.1f} s")
    return done


def nodes_at(address: str) -> list[dict[str, Any]]:
    """What each living node of a cluster offers, the head first; ``host`` numbers the machines.

    Raises
    ------
    CalibrationError
        Ray is not installed, or there is no cluster.
    """
    if installed("ray") is None:
        raise CalibrationError("ray is not installed: pip install 'raysim[real]'")
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise CalibrationError(f"--address {address}: no Ray cluster there: {error}") from error
    try:
        listed: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
    alive = [node for node in listed if node["Alive"]]
    alive.sort(key=lambda node: ("node:__internal_head__" not in node["Resources"], node["NodeID"]))
    hosts = list(dict.fromkeys(node["NodeManagerHostname"] for node in alive))
    return [
        {
            "host": hosts.index(node["NodeManagerHostname"]),
            "resources": {
                name: amount
                for name, amount in sorted(node["Resources"].items())
                if not name.startswith(("node:", "object_store"))
            },
            "object_store_bytes": int(node["Resources"].get("object_store_memory", 0)),
        }
        for node in alive
    ]


def keep_cluster(nodes: list[dict[str, Any]], folder: Path) -> None:
    """Write what was measured on beside its rows.

    Raises
    ------
    CalibrationError
        The rows there are of another cluster.
    """
    path = folder / CLUSTER
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != nodes:
        raise CalibrationError(f"{path}: of another cluster: give another folder with --against")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nodes, indent=1) + "\n", encoding="utf-8")


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
