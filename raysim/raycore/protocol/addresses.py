"""Where rooms are found."""

from __future__ import annotations

from functools import cache

from raysim.raycore.ids import NodeID

GCS = "gcs"


@cache
def raylet(node_id: NodeID) -> str:
    """Address of a node's raylet."""
    return f"node-{node_id}/raylet"


@cache
def plasma(node_id: NodeID) -> str:
    """Address of a node's object store."""
    return f"node-{node_id}/plasma"


@cache
def object_manager(node_id: NodeID) -> str:
    """Address of a node's object manager."""
    return f"node-{node_id}/object_manager"


def raylet_process(node_id: NodeID) -> tuple[str, str, str]:
    """Rooms of a node's raylet process, the raylet first."""
    return raylet(node_id), plasma(node_id), object_manager(node_id)


SMALL_BYTES = 200
"""A gRPC message of a few ids."""
