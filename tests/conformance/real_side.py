"""Runs a program on the real Ray, on the cluster it declares."""

from __future__ import annotations

from pathlib import Path

from raysim.measure.local_cluster import LocalCluster
from raysim.scenario.declaration import declared_by, wants_dashboard

REAL = LocalCluster()


def run_on_ray(program: Path) -> list[str]:
    """What the program prints on real Ray."""
    REAL.want(declared_by(program), dashboard=wants_dashboard(program))
    return REAL.run(program).lines
