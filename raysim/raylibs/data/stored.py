"""Files that a scenario describes, so that programs may read what is not on this machine.

Real counterpart: objects of a bucket, or files of a mount, behind ``ray.data.read_*``. What is
known is how many rows and bytes they hold, and the kinds of their columns; values are zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from raysim.hardware.specs import ObjectStorageSpec
from raysim.raylibs.data.specs import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """All files under one path."""

    at: str
    """What their paths begin with."""
    source: Source
    columns: tuple[tuple[str, str, tuple[int, ...]], ...] = ()
    """Name, numpy's type and shape of a value; none: bytes as large as a row."""
    bucket: ObjectStorageSpec | None = None
    """None: the disk of the node that reads."""
    connections: int = 10
