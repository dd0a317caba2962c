"""Ray programs in tests: run on a small cluster made when they ask for it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.rayapi.loader import run_program, run_script
from raysim.raycore.cluster import Cluster
from tests.raycore_parts import ray_cluster

PROGRAMS = Path(__file__).parent / "programs"


def on_demand(**changes: Any) -> Callable[[dict[str, Any]], Cluster]:
    """A cluster for each ``ray.init``: one node with the CPUs it asks for."""

    def make(request: dict[str, Any]) -> Cluster:
        given = {"cpus": request.get("num_cpus") or 4, "gpus": request.get("num_gpus") or 0,
                 "resources": request.get("resources"), "check": True}  # fmt: skip
        return ray_cluster(**(given | changes))

    return make


def run(main: Callable[[], Any], cluster: Any = None, **more: Any) -> Any:
    """What a driver function returns."""
    return run_program(main, cluster or on_demand(), **more)[0]


def printed(script: Path, cluster: Any = None, argv: tuple[str, ...] = ()) -> list[str]:
    """What a script prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        run_script(script, argv, cluster=cluster or on_demand())
    return out.getvalue().splitlines()
