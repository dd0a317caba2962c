"""Threads' work per call on the emulator: what accounts of real Ray's threads are compared with.

Real counterpart: ``measure.ray_core.threads``. The same calls are made on one node of a machine
with the cores of the measured one, and what each emulated thread worked is added up by role.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from raysim.calibrate.direct import TABLE
from raysim.calibrate.rows import Measured, RowKey
from raysim.hardware.host import CoreLoad
from raysim.measure.ray_core.activities import ACTIVITIES, ROLES, Roles, work_of
from raysim.measure.table import read_rows
from raysim.perf.profile import costs_with
from raysim.rayapi.loader import run_program
from raysim.raycore.core_worker.executor import Executor
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.object_manager.object_manager import ObjectManager
from raysim.raycore.plasma.store import PlasmaStore
from raysim.raycore.raylet.raylet import Raylet
from raysim.scenario.declaration import parse_cluster
from raysim.validate.emulated import declared_cluster, host
from raysim.validate.replayed import Against

COUNT = 300
"""Calls per activity, as are measured: a burst's first calls find threads that have slept."""
ACCOUNT_ERROR = 0.25
"""Of the emulator where one thread's work is asked: messages of a kind cost it more or less."""
LEAST_SHARE = 0.03
"""Of an activity's work, what a role must have to be a row: less is lost in what others do."""
STORE = "1024 MiB object store"
_ROOMS = {Raylet: "raylet", ObjectManager: "raylet", PlasmaStore: "store"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadWork:
    """Predicts every role's work per call: a ``Predict``."""

    against: Against
    known: Mapping[str, float] = field(default_factory=dict)
    """Constants that are not asked about."""
    activities: tuple[str, ...] = ACTIVITIES

    def __call__(self, values: Mapping[str, float]) -> dict[RowKey, float]:
        """Seconds of work, with those constants of ``RayCosts``."""
        costs = costs_with({**self.known, **values})
        hardware = self.against.hardware
        box = host(cores=hardware["cores"], memory_bytes=hardware["memory_bytes"])
        declared = parse_cluster(f"{hardware['cores']} CPU, {STORE}")
        cluster = declared_cluster(declared, (box,), host_of=(0,), costs=costs).cluster
        load = cluster.env.nodes[0].host.load
        assert load is not None
        found: dict[RowKey, float] = {}

        def main() -> None:
            for what in self.activities:
                roles = work_of(what, COUNT, partial(account, load))
                found.update({(what, role): max(seconds, 0.0) for role, seconds in roles.items()})

        run_program(main, cluster, last=True)
        gc.collect()  # few objects, in cycles, but with what was put
        return found


def account(load: CoreLoad) -> Roles:
    """Seconds on a core so far by role."""
    roles: dict[str, float] = defaultdict(float)
    for thread, ns in load.worked_ns.items():
        roles[_role_of(thread)] += ns * 1e-9
    return roles


def _role_of(thread: object) -> str:
    if isinstance(thread, Executor):
        return "submit" if thread.core.kind == "DRIVER" else "executor"
    if isinstance(thread, CoreWorker):
        return "io" if thread.kind == "DRIVER" else "executor_io"
    if isinstance(thread, str):  # a process, of the wire
        return "grpc"
    return _ROOMS.get(type(thread), "other")


def measured_work(folder: Path) -> list[Measured]:
    """Rows of the folder's accounts that say something of a role; [] if there are none."""
    path = folder / TABLE
    if not path.exists():
        return []
    keys = {f"work_{role}_{what}": (what, role) for what in ACTIVITIES for role in ROLES}
    rows = {keys[op]: row for row in read_rows(path) if (op := row.parameters["op"]) in keys}
    total: dict[str, float] = defaultdict(float)
    for (what, _), row in rows.items():
        total[what] += row.value
    return [
        Measured(
            key=key,
            role="calibration",
            value=row.value,
            unit=row.unit,
            repetitions=row.repetitions,
            low=row.low,
            high=row.high,
            family="work",
            model_error=ACCOUNT_ERROR,
        )
        for key, row in rows.items()
        if row.value > LEAST_SHARE * total[key[0]]
    ]
