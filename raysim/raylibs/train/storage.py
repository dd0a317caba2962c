"""Checkpoints on their way between a worker's node and where the run keeps them.

Real counterpart: ``python/ray/train/v2/_internal/execution/storage.py``: ``pyarrow.fs.copy_files``
from a local folder to ``storage_path`` and back, a stream per file.

Bytes are flows over the links of the cluster's network, and the store's own limits (of one stream,
of one node, in all) are links beside them: uploads of many ranks, of several runs, of Ray Data and
all-reduces share what they share. A folder on the node's own disk is that disk, shared alike.

Not modelled: listing and deleting (instant), retries of cloud errors, the page cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from raysim.hardware.node_links import Link
from raysim.hardware.specs import SharedStorageSpec
from raysim.raycore.ids import NodeID
from raysim.raycore.room import Surroundings

Way = Literal["write", "read"]


class Store:
    """Where one run keeps its checkpoints.

    Parameters
    ----------
    env
        Of the cluster; the store's links are shared by all runs that name the same store.
    spec
        None: the first disk of each node.
    """

    def __init__(self, env: Surroundings, spec: SharedStorageSpec | None) -> None:
        self.env = env
        self.spec = spec
        self._flows: dict[int, Any] = {}
        self._last = 0

    def move(
        self,
        way: Way,
        node_id: NodeID,
        size_bytes: float,
        then: Callable[[bool], object],
        *,
        streams: int = 1,
    ) -> None:
        """Move bytes between a node and the store; ``then(True)``, or False if the node died.

        Nothing comes of what was cancelled.
        """
        if size_bytes <= 0:
            self.env.sim.call_later(0, then, True)
            return
        if self.spec is None:
            self._on_disk(way, node_id, size_bytes, then)
            return
        loads, most_bytes_per_s = self._loads(way, node_id, self.spec)
        number = self._last = self._last + 1
        self._flows[number] = self.env.network.start(
            loads, size_bytes, max_bytes_per_s=most_bytes_per_s * streams,
            then=partial(self._ended, number, then), arg=True,
            failed=lambda _, __: self._ended(number, then, ok=False),
        )  # fmt: skip

    def cancel(self) -> None:
        """Whoever moved bytes is gone."""
        flows, self._flows = self._flows, {}
        for flow in flows.values():
            self.env.network.cancel(flow)

    @property
    def busy(self) -> bool:
        """Whether bytes are on their way over the network."""
        return bool(self._flows)

    def _ended(self, number: int, then: Callable[[bool], object], ok: bool) -> None:
        self._flows.pop(number, None)
        then(ok)

    def _on_disk(
        self, way: Way, node_id: NodeID, size_bytes: float, then: Callable[[bool], object]
    ) -> None:
        disks = self.env.nodes[node_id].disks
        if not disks:  # a machine without a disk of its own has a file system in memory
            self.env.sim.call_later(0, then, True)
            return
        move = disks[0].write if way == "write" else disks[0].read
        move(size_bytes, then, True, failed=lambda _, __: then(False))

    def _loads(
        self, way: Way, node_id: NodeID, spec: SharedStorageSpec
    ) -> tuple[list[tuple[Link, float]], float]:
        topology = self.env.nodes[node_id].topology
        if way == "write":
            over = topology.path(("host", node_id), ("storage",))
            limits = (spec.write_bytes_per_s, spec.node_write_bytes_per_s)
            stream = spec.stream_write_bytes_per_s
        else:
            over = topology.path(("storage",), ("host", node_id))
            limits = (spec.read_bytes_per_s, spec.node_read_bytes_per_s)
            stream = spec.stream_read_bytes_per_s
        whole = self._link(f"{spec.name}/{way}", limits[0])
        each = self._link(f"node-{node_id}/{spec.name}/{way}", limits[1])
        finite = [link for link in (*over, each, whole) if math.isfinite(link.bytes_per_s)]
        return [(link, 1.0) for link in finite], stream

    def _link(self, name: str, bytes_per_s: float) -> Link:
        return self.env.shared_links.setdefault(name, Link(name, bytes_per_s))
