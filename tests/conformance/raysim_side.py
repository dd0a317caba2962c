"""Runs a program on raysim's own Ray, on the cluster it declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raysim.hardware.specs import NodeSpec
from raysim.scenario.declaration import NodeDeclaration, declared_by
from raysim.validate.emulated import declared_cluster, nodes_added, play
from tests.hardware_parts import bare_node
from tests.hardware_parts import node as gpu_node


def run_on_raysim(program: Path) -> list[str]:
    """What the program prints on raysim; the same rules as ``measure.local_cluster``."""
    declared, later = declared_by(program), nodes_added(program)
    boxes = [_machine(node) for node in (*declared.nodes, *later)]
    emulation = declared_cluster(declared, boxes, later=later, check=True)
    lines: list[str] = []
    code: Any = 0
    try:
        play(program, emulation, lines=lines)
    except SystemExit as stop:
        code = stop.code
    except Exception:  # noqa: BLE001  (a program that fails exits with 1)
        code = 1
    return [*lines, f"@exit {code}"] if code else lines


def _machine(node: NodeDeclaration) -> NodeSpec:
    """A machine of its own, as large as what is declared."""
    sizes: dict[str, Any] = {"vcpus": node.num_cpus or 1}
    if node.memory_bytes is not None:
        sizes["memory_bytes"] = node.memory_bytes + (node.object_store_bytes or 0)
    return gpu_node(**sizes, gpu_count=node.num_gpus) if node.num_gpus else bare_node(**sizes)
