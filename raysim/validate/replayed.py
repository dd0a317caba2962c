"""Workload files that were run on real Ray, predicted on a machine like the measured one."""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from raysim.errors import CalibrationError, ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import NodeSpec
from raysim.kernel.simulation import collector_at_ease
from raysim.measure.machine import describe
from raysim.measure.replay import CLUSTER
from raysim.measure.table import MeasuredRow, read_meta, read_rows
from raysim.measure.workload import Workload, read_output
from raysim.perf.profile import OWN, Profile
from raysim.perf.ray_core import RayCosts
from raysim.rayapi.compute import Compute
from raysim.rayapi.session import ProgramHangs
from raysim.scenario.declaration import ClusterDeclaration, NodeDeclaration
from raysim.scenario.profile import on_node, profile_at
from raysim.validate.emulated import Emulation, declared_cluster, host, nodes_added, play
from raysim.validate.gpu_steps import machine
from raysim.validate.points import Point
from raysim.validate.scripts import PROFILE as SCRIPTS

LIMIT_S = 900.0
"""Virtual seconds after which a workload counts as hanging; all take less than 20 in truth."""
DRIVERS = 4
"""How often a program is played on one cluster; the first time does not count, of the others the
median does, as of what was measured. Repetitions on real Ray share a cluster, and most of them find
it used: pages of the store were written to, workers that spill have started, and none for tasks are
started ahead, as they are for a cluster's first driver."""
BETWEEN_NS = 2 * 10**9
"""From a driver's end to the next: a process that starts and imports Ray."""
PHASE_NS = 10**8 // (DRIVERS - 1)
"""How much longer it is each time: raylets hear of each other every 100 ms, and drivers come at any
moment between."""
PROFILE = "ray_profile.yaml"
"""Of a data folder: constants of that machine."""
CPU_RANKS = "cpu-ranks-2"
"""Of the catalog: where ranks without a GPU are described."""
COMPUTE = "compute"
"""Folder, in a data folder, of how long a workload's own code takes on that machine."""
DISK = "disk.csv"
"""Of a data folder: rates of its file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """A folder of measured tables."""

    folder: Path
    hardware: Mapping[str, Any]
    """Of ``meta.yaml``, as ``versions``: the machine that was measured."""
    versions: Mapping[str, str | None]
    nodes: tuple[NodeDeclaration, ...] = ()
    """Of the running cluster that the workloads shared; () if each had its own, on this machine."""
    host_of: tuple[int, ...] = ()

    @classmethod
    def at(cls, folder: Path) -> Against:
        """The folder, opened.

        Raises
        ------
        CalibrationError
            It says nothing of its machine.
        """
        meta = read_meta(folder)
        if not meta:
            raise CalibrationError(
                f"{folder}: has no meta.yaml, so no machine to emulate; `raysim measure` writes "
                "it beside its tables, and reads no tables of other makers"
            )
        nodes: list[dict[str, Any]] = []
        if (folder / CLUSTER).exists():
            nodes = json.loads((folder / CLUSTER).read_text(encoding="utf-8"))
        return cls(
            folder=folder, hardware=meta["hardware"], versions=meta["versions"],
            nodes=tuple(_declared(node) for node in nodes),
            host_of=tuple(node["host"] for node in nodes),
        )  # fmt: skip

    def profile(self) -> Profile:
        """The folder's own, of a calibration on its rows; raysim's own constants if it has none."""
        return profile_at(self.folder / PROFILE)

    def training(self) -> Profile:
        """Constants of its GPUs and of the host that drives them."""
        return profile_at(self.folder / SCRIPTS)

    def emulation(self, workload: Workload, costs: RayCosts) -> Emulation:
        """The cluster on which the workload was measured."""
        training = self.training().training_constants()
        return replace(self._emulated(workload, costs), training=training)

    def _emulated(self, workload: Workload, costs: RayCosts) -> Emulation:
        if not self.nodes:
            box = self._host(self.hardware["cores"], self.hardware["memory_bytes"])
            declared, later = workload.declared, nodes_added(workload.path)
            count = len(declared.nodes) + len(later)
            return declared_cluster(
                declared, (box,) * count, later=later, costs=costs, host_of=(0,) * count
            )
        return declared_cluster(
            ClusterDeclaration(text=CLUSTER, nodes=self.nodes, named=False, disturbed=False),
            [self._box(number) for number in self.host_of], costs=costs, host_of=self.host_of,
        )  # fmt: skip

    def _box(self, number: int) -> NodeSpec:
        """A machine of the running cluster: what its nodes offer together."""
        on_it = [n for n, h in zip(self.nodes, self.host_of, strict=True) if h == number]
        cores = sum(node.num_cpus for node in on_it) or 1
        return self._host(cores, sum(node.memory_bytes or 0 for node in on_it))

    def _host(self, cores: int, memory_bytes: int) -> NodeSpec:
        """With what its profile says of training ranks without a GPU, or with its GPUs."""
        box = host(cores=cores, memory_bytes=memory_bytes, **_disk_rates(self.folder))
        if gpus := self.hardware.get("gpus"):
            there = machine(self.folder, self.training()).groups[0].node
            cpu = replace(there.cpu, sockets=1, cores=cores)
            box = replace(
                there, vcpus=cores, memory_bytes=memory_bytes, cpu=cpu, gpu_count=len(gpus),
                nic=box.nic, nic_count=1, disks=box.disks,
            )  # fmt: skip
        else:
            box = replace(box, gpu=catalog.node(CPU_RANKS).gpu, gpu_count=0)
        return on_node(box, self.profile())

    def rows(self, workload: Workload) -> list[MeasuredRow]:
        """Measured rows of a workload; [] if there are none."""
        path = self.folder / f"{workload.table}.csv"
        if not path.exists():
            return []
        return [row for row in read_rows(path) if row.parameters["workload"] == workload.name]


def newest(data: Path, family: str = "*") -> Path:
    """The folder ``<hardware>/<date>`` with replayed workloads of a family whose date is the last.

    Of one day, the machine with the most rows.

    Raises
    ------
    CalibrationError
        There is none.
    """
    tables = sorted(data.glob(f"*/*/replay_{family}_validation.csv"))
    if not tables:
        raise CalibrationError(
            f"{data}: no replayed workloads there; measure some with raysim validate --real"
        )

    def rank(table: Path) -> tuple[str, int]:
        return table.parent.name, table.read_text(encoding="utf-8").count("\n")

    return max(tables, key=rank).parent


def replayed_points(
    workloads: Sequence[Workload],
    against: Against,
    profile: Profile = OWN,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[Point]:
    """One point per measured row, and one for each workload that cannot be compared, with why.

    A profile that says how far it may be off gives each prediction its interval.
    """
    costs = profile.ray_costs()
    for workload in workloads:
        rows = against.rows(workload)
        family = f"{workload.family}/{workload.name.partition('_')[0]}"
        if not rows:
            yield Point(
                family=family, name=workload.name, role=workload.role, left_out="not measured"
            )
            continue
        told(workload.name)
        try:
            found, why = predicted(workload, against, costs), ""
        except NotPredicted as reason:
            found, why = {}, str(reason)
        for row in rows:
            name = row.parameters["row"]
            low, high = _interval(found.get(name), profile)
            yield Point(
                family=family, name=f"{workload.name} {name}", role=workload.role, unit=row.unit,
                measured=row.value, low=row.low, high=row.high, repetitions=row.repetitions,
                predicted=found.get(name), predicted_low=low, predicted_high=high,
                left_out=why if why or name in found else "not printed on the emulator",
            )  # fmt: skip


def _interval(predicted: float | None, profile: Profile) -> tuple[float | None, float | None]:
    if predicted is None or profile.spread is None:
        return None, None
    return profile.interval(predicted)


class NotPredicted(Exception):  # noqa: N818  (a reason, not a failure)
    """Why a workload has no prediction."""


def predicted(workload: Workload, against: Against, costs: RayCosts) -> dict[str, float]:
    """Value of each row on the emulated machine.

    Raises
    ------
    NotPredicted
        The program uses what is not emulated, fails, or hangs there; or the time of its own code
        is not known.
    """
    compute, table = _compute(workload, against)
    try:
        with collector_at_ease():
            try:
                plays = _printed(workload, against.emulation(workload, costs), compute)
            finally:
                gc.collect()  # few objects, in cycles, but with the program's gigabytes in stores
        rows = [row for lines in plays for row in read_output(lines, workload)]
    except ProgramHangs:
        raise NotPredicted(f"hangs on the emulator for {LIMIT_S:.0f} s") from None
    except ScenarioError as error:
        raise NotPredicted(str(error)) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  (a prediction that fails is a row of the report)
        raise NotPredicted(_in_a_line(error)) from None
    if table is not None and compute.mode == "measured":
        table.parent.mkdir(exist_ok=True)
        compute.write(table)
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        values[row.row].append(row.value)
    return {name: median(found) for name, found in values.items()}


def _printed(workload: Workload, emulation: Emulation, compute: Compute) -> list[list[str]]:
    """What the workload prints in each of the plays that count."""
    if workload.declared.disturbed:
        return [_played(workload, emulation, compute)]
    cluster, plays = emulation.cluster, []
    for number in range(DRIVERS):
        plays.append(_played(workload, emulation, compute))
        gc.collect(1)  # as below, of this play's driver
        cluster.sim.run(cluster.sim.now_ns + BETWEEN_NS + number * PHASE_NS)
    return plays[1:]


def _played(workload: Workload, emulation: Emulation, compute: Compute) -> list[str]:
    lines: list[str] = []
    play(workload.path, emulation, compute=compute, limit_s=LIMIT_S, lines=lines)
    return lines


def _compute(workload: Workload, against: Against) -> tuple[Compute, Path | None]:
    """How the time of the program's own code is known: by sleeps alone, or by a table.

    Without a table, the code is timed here if this is the machine that was measured.
    """
    if not workload.computes:
        return Compute("declared"), None
    table = against.folder / COMPUTE / f"{workload.name}.csv"
    if table.exists():
        return Compute("table", table=table), table
    here, there = describe(), against.hardware
    if (here.cpu, here.cores) != (there["cpu"], there["cores"]):
        raise NotPredicted(f"no {COMPUTE}/{table.name}, and this is not the machine measured")
    return Compute("measured"), table


def _disk_rates(folder: Path) -> dict[str, float]:
    """Of ``host``: of the page cache, where Ray spills to; {} if nobody measured it.

    What is written stays there, up to a fifth of the memory that is free (``vm.dirty_ratio``);
    measured writes waited for the disk. What copying it there takes is the worker's own work.
    """
    rows = read_rows(folder / DISK) if (folder / DISK).exists() else []
    cached = [
        row.value
        for row in rows
        if (row.parameters["op"], row.parameters["cache"], row.unit) == ("read", "cached", "B/s")
    ]
    return dict.fromkeys(("read_bytes_per_s", "write_bytes_per_s"), max(cached)) if cached else {}


def _declared(node: dict[str, Any]) -> NodeDeclaration:
    """A node of ``cluster.json``."""
    resources = dict(node["resources"])
    return NodeDeclaration(
        num_cpus=int(resources.pop("CPU", 0)), num_gpus=int(resources.pop("GPU", 0)),
        memory_bytes=int(resources.pop("memory", 0)) or None,
        object_store_bytes=node["object_store_bytes"] or None, resources=resources,
    )  # fmt: skip


def _in_a_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None)
    inner = cause if isinstance(cause, BaseException) else error
    said = str(inner).strip().partition("\n")[0]
    return f"{type(inner).__name__}: {said}"
