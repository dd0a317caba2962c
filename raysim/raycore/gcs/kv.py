"""The key-value store: exported functions, runtime environments, whatever programs put.

Real counterpart: ``src/ray/gcs/gcs_kv_manager.cc`` (``InternalKV``). A function is written once per
job and read once by each process that runs it, so a GCS that is down stops first-time calls only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raycore.protocol import (
    InternalKVDel,
    InternalKVGet,
    InternalKVKeys,
    InternalKVPut,
    KVValue,
)

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs


class GcsKVManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._table = gcs.tables.kv

    def put(self, m: InternalKVPut) -> bool:
        """True if the key was new."""
        key = (m.namespace, m.key)
        is_new = key not in self._table
        if is_new or m.overwrite:
            self._table[key] = KVValue(m.value, m.value_bytes)
        return is_new

    def get(self, m: InternalKVGet) -> KVValue | None:
        """What is there."""
        return self._table.get((m.namespace, m.key))

    def delete(self, m: InternalKVDel) -> int:
        """How many there were."""
        return 0 if self._table.pop((m.namespace, m.key), None) is None else 1

    def keys(self, m: InternalKVKeys) -> tuple[str, ...]:
        """Of a namespace, those that begin so."""
        return tuple(
            key for space, key in self._table if space == m.namespace and key.startswith(m.prefix)
        )
