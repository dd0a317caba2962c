"""Runs a program on raysim's own Ray, on the cluster it declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.cluster import declared_by


def run_on_raysim(program: Path) -> list[str]:
    """What the program prints on raysim; the same rules as `real_side.RealCluster.run`."""
    pytest.importorskip("raysim.rayapi.loader", reason="Ray programs cannot be loaded yet")
    from tests.rayapi_parts import run_declared

    return run_declared(program, declared_by(program))
