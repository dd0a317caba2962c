"""Small Ray programs for tests of what is around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import raysim
from raysim.results.result import Result
from raysim.scenario.script import script_scenario

SQUARES = """
import sys, time
import ray

ray.init()

@ray.remote
def square(x):
    time.sleep(2)
    return x * x

print(sum(ray.get([square.remote(i) for i in range(int(sys.argv[1]) if sys.argv[1:] else 32)])))
"""
CLUSTER = "nodes: 2\nnode: m5.2xlarge\n"


def script(folder: Path, text: str, name: str = "main.py") -> Path:
    """A program in a file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def run(folder: Path, text: str, *, cluster: str = CLUSTER, **more: Any) -> Result:
    """A program on a cluster section, its code costing what it declares."""
    section = folder / "cluster.yaml"
    section.write_text(cluster, encoding="utf-8")
    scenario = script_scenario(script(folder, text), cluster=section, compute="declared", **more)
    return raysim.run(scenario)
