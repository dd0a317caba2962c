"""The object store of a node."""

from raysim.raycore.plasma.store import PlasmaStore

__all__ = ["PlasmaStore"]
