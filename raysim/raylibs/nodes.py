"""What the nodes of a cluster offer, for libraries that say what will never find room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import quantities

Nodes = Sequence[Mapping[str, float]]
"""Ray's logical resources of each node there is or may be."""


def cluster_nodes(process: CoreProcess) -> Nodes:
    """What each node offers, those included that the autoscaler may add."""
    found = []
    for node in process.env.nodes:
        resources = {"CPU": float(node.spec.vcpus)}
        if node.spec.gpu_count:
            resources["GPU"] = float(node.spec.gpu_count)
        seen = process.env.view.nodes.get(node.index)
        if seen is not None:
            resources = quantities(seen.resources.total)
        found.append(resources)
    return found


def lacking(asked: Iterable[str], nodes: Nodes) -> list[str]:
    """Resources that no node has any of."""
    return [name for name in asked if not any(node.get(name) for node in nodes)]
