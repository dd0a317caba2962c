"""RPC and service times of Ray's core, on raylets of this host, into ``ray_core.csv``.

What a constant is, is read from slopes over ``count`` or ``bytes``, or from what other rows leave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from raysim.measure.local_cluster import LocalCluster
from raysim.measure.machine import describe
from raysim.measure.ray_core import calls, objects, processes
from raysim.measure.ray_core.probe import COLUMNS, Probe
from raysim.measure.session import Session, needs
from raysim.measure.table import MeasuredTable
from raysim.scenario.declaration import parse_cluster
from raysim.units import MIB

__all__ = ["measure"]

STORE = 1024 * MIB
SMALL_STORE = 96 * MIB
"""Ray wants 75 MiB at least."""


def measure(session: Session) -> None:
    """Fill ``ray_core.csv`` on three clusters: one node; two nodes; one with a small store.

    Raises
    ------
    CalibrationError
        Ray is not installed or does not start.
    """
    needs("ray", "ray")
    quick = session.quick
    node = f"{describe().cores} CPU, {STORE // MIB} MiB object store"
    small = f"{describe().cores} CPU, {SMALL_STORE // MIB} MiB object store"
    parts = {
        node: [
            *objects.probes(quick=quick),
            *calls.probes(quick=quick),
            *processes.probes(quick=quick),
        ],
        f"{node}; {node}": list(objects.transfers(quick=quick)),
        small: list(objects.spills(quick=quick, store_bytes=SMALL_STORE)),
    }
    left = sum(map(len, parts.values()))
    with session.table("ray_core", COLUMNS) as table, LocalCluster() as local:
        for declaration, probes in parts.items():
            share = len(probes) / max(1, left)
            left -= len(probes)
            _on(local, declaration, session, table, probes, share)


def _on(
    local: LocalCluster,
    declaration: str,
    session: Session,
    table: MeasuredTable,
    probes: Iterable[Probe],
    share: float,
) -> None:
    """Measure on the declared cluster; it is not started for rows that are there."""
    points = [probe.point() for probe in probes]
    if all(point.parameters in table for point in points) or session.budget.left_s() <= 0:
        session.run(table, points)
        return
    import ray

    declared = parse_cluster(declaration)
    local.want(declared)
    ray.init(local.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        _wake(sum(node.num_cpus for node in declared.nodes))
        session.run(table, points, share)
    finally:
        ray.shutdown()


def _wake(workers: int) -> None:
    """Wait until the workers that a node starts at once are up; no page of the store is touched."""
    import ray

    @ray.remote
    def occupy() -> None:
        import time

        time.sleep(1.0)

    ray.get([occupy.remote() for _ in range(workers)])
