"""RPC and service times of Ray's core, on raylets of this host, into ``ray_core.csv``.

What a constant is, is read from slopes over ``count`` or ``bytes``, or from what other rows leave.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from raysim.measure.local_cluster import LocalCluster
from raysim.measure.machine import describe
from raysim.measure.ray_core import calls, objects, processes, threads
from raysim.measure.ray_core.probe import COLUMNS, Probe, settle
from raysim.measure.session import Session, needs
from raysim.measure.table import MeasuredTable
from raysim.scenario.declaration import parse_cluster
from raysim.units import MIB

__all__ = ["measure"]

STORE = 1024 * MIB
SMALL_STORE = 96 * MIB
"""Ray wants 75 MiB at least."""
START_S = 15.0
"""For the workers that a node starts at once; nothing else may use them or the store before."""


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
            *threads.probes(quick=quick),
        ],
        f"{node}; {node}": list(objects.transfers(quick=quick)),
        small: [
            *processes.actors(quick=quick),
            *objects.spills(quick=quick, store_bytes=SMALL_STORE),
        ],
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

    local.want(parse_cluster(declaration))
    ray.init(local.address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        settle(START_S)
        session.run(table, points, share)
    finally:
        ray.shutdown()
