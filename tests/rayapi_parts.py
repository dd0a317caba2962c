"""Ray programs in tests: the cluster that a conformance program declares, and running one on it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.kernel.simulation import Simulation
from raysim.rayapi.loader import run_program, run_script
from raysim.raycore.cluster import Cluster, NodeOptions
from raysim.raycore.config import RayConfig
from raysim.raycore.faults import Faults
from raysim.raycore.ids import node_ip
from raysim.raycore.state_log import StateLog
from raysim.raystate.names import NODE_NAME_LABEL
from tests.conformance.cluster import ADD_NODE, KILL_NODE, parse_nodes
from tests.hardware_parts import bare_node
from tests.hardware_parts import node as gpu_node
from tests.raycore_parts import ray_cluster

PROGRAMS = Path(__file__).parent / "programs"
_ADDED = re.compile(f"{ADD_NODE}([^'\n]+)'")
"""What a program's ``print('@add-node NODE')`` says."""


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


class Watched(io.StringIO):
    """Output that acts on some of its lines."""

    def __init__(self, act: Callable[[str], None]) -> None:
        super().__init__()
        self._act = act
        self._line = ""

    def write(self, text: str) -> int:
        super().write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._act(line)
        return len(text)


def declared_cluster(
    declared: Any, *, later: tuple[Any, ...] = (), check: bool = True
) -> tuple[Cluster, list[int]]:
    """The cluster that a conformance program's header asks for; places of nodes, in its order.

    Nodes that it adds ``later`` are there, but off.
    """
    groups, options = [], {}
    numbered = enumerate([*declared.nodes, *later])
    ordered = sorted(numbered, key=lambda pair: not pair[1].num_gpus)
    for place, (number, node) in enumerate(ordered):
        sizes: dict[str, Any] = {"vcpus": node.num_cpus or 1}
        if node.memory_bytes is not None:
            sizes["memory_bytes"] = node.memory_bytes + (node.object_store_bytes or 0)
        kind = gpu_node(**sizes, gpu_count=node.num_gpus) if node.num_gpus else bare_node(**sizes)
        groups.append(NodeGroup(name=f"n{number}", node=kind, count=1, head=number == 0))
        resources = {"CPU": node.num_cpus, "GPU": node.num_gpus, **node.resources}
        resources["accelerator_type:gpu"] = 0  # of GPUs that are only declared, Ray knows no type
        resources |= {f"node:{node_ip(i)}": 0 for i in range(len(ordered))}
        resources[f"node:{node_ip(0)}"] = 1  # all raylets were on one host
        if declared.named:
            resources[f"n{number}"] = 1
        if node.memory_bytes is not None:
            resources["memory"] = node.memory_bytes
        options[place] = NodeOptions(
            resources=resources, labels={**node.labels, NODE_NAME_LABEL: f"n{number}"},
            object_store_bytes=node.object_store_bytes or 200 * 2**20,
            off=number >= len(declared.nodes),
        )  # fmt: skip
    config = RayConfig(health_check_initial_delay_ms=1_000, health_check_period_ms=300,
                       health_check_failure_threshold=3)  # fmt: skip
    spec = ClusterSpec(groups=tuple(groups), fabric=FabricSpec(kind="star"))
    cluster = Cluster(Simulation(check=check), spec, config=config, options=options, log=StateLog())
    return cluster, [number for number, _ in ordered]


def run_declared(program: Path, declared: Any) -> list[str]:
    """What a conformance program prints, with the nodes it asks for killed and added."""
    source = program.read_text(encoding="utf-8")
    later = tuple(node for text in _ADDED.findall(source) for node in parse_nodes(text))
    cluster, places = declared_cluster(declared, later=later)
    faults = Faults(cluster)
    joins = iter(range(len(declared.nodes), len(places)))

    def act(line: str) -> None:
        if line.startswith(KILL_NODE):
            faults.kill_raylet(places.index(int(line.rpartition("n")[2])))
        elif line.startswith(ADD_NODE):
            for _ in parse_nodes(line.removeprefix(ADD_NODE)):
                cluster.start_node(places.index(next(joins)))

    out = Watched(act)
    code: Any = 0
    before = os.environ.get("RAY_ADDRESS")
    os.environ["RAY_ADDRESS"] = f"{node_ip(cluster.head)}:6379"
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program's own
        try:
            run_script(program, cluster=cluster)
        except SystemExit as stop:
            code = stop.code
        except Exception:  # noqa: BLE001  (a program that fails exits with 1)
            code = 1
        finally:
            del os.environ["RAY_ADDRESS"]
            if before is not None:
                os.environ["RAY_ADDRESS"] = before
    lines = out.getvalue().splitlines()
    return [*lines, f"@exit {code}"] if code else lines
