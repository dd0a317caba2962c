"""What must always hold in a raylet, for runs that check."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raycore.resources import CPU, OBJECT_STORE_MEMORY, UNIT, Allocation

if TYPE_CHECKING:
    from raysim.raycore.raylet.raylet import Raylet


def what_is_wrong(raylet: Raylet) -> str:
    """Empty when resources are conserved and every lease has its worker."""
    return _resources(raylet) or _leases(raylet)


def _resources(raylet: Raylet) -> str:
    taken: dict[str, int] = {}

    def count(allocation: Allocation, *, but_cpu: bool = False) -> None:
        for name, n in allocation.items():
            if not (but_cpu and name == CPU):
                taken[name] = taken.get(name, 0) + (n if isinstance(n, int) else sum(n))

    for lease in raylet.leases.values():
        if lease.allocation is not None:
            count(lease.allocation, but_cpu=lease.blocked)
    for held in (*raylet.bundles.prepared.values(), *raylet.bundles.committed.values()):
        count(held)
    resources = raylet.resources
    taken[OBJECT_STORE_MEMORY] = taken.get(OBJECT_STORE_MEMORY, 0) + raylet.primary_bytes * UNIT
    for name, total in resources.total.items():
        available = resources.available[name]
        if total - available != taken.get(name, 0):
            return f"{name}: {total} in all, {available} free, {taken.get(name, 0)} taken"
        if available < 0 and name not in (CPU, OBJECT_STORE_MEMORY):
            return f"{name}: {available} free"
        free = resources.instances.get(name)
        if free is not None and (sum(free) != available or min(free, default=0) < 0):
            return f"{name}: instances {free}, {available} free"
    return ""


def _leases(raylet: Raylet) -> str:
    held = 0
    for lease in raylet.leases.values():
        held += lease.state in ("GRANTED", "PENDING_WORKER")
        if lease.state == "GRANTED":
            worker = lease.worker
            if worker is None or worker.lease is not lease:
                return f"lease {lease.lease_id} is granted, its worker has another"
            if worker.worker_id not in raylet.pool.workers:
                return f"lease {lease.lease_id} is granted to dead worker {worker.worker_id}"
        if lease.state == "PENDING_WORKER" and lease.lease_id not in raylet.pool.pending:
            return f"lease {lease.lease_id} waits for no worker"
    if held != raylet.local.held:
        return f"{held} leases hold resources, {raylet.local.held} counted"
    granted = sum(klass.granted for klass in raylet.classes.all())
    if granted != held:
        return f"{held} leases hold resources, {granted} counted by class"
    for worker in raylet.pool.idle:
        if worker.lease is not None:
            return f"worker {worker.worker_id} is idle and has lease {worker.lease.lease_id}"
    return ""
