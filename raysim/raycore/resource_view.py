"""What raylets know of each other's resources: the published view, and what each adds to it.

Real counterpart: ``src/ray/ray_syncer``: every raylet reports at most once per 100 ms and only when
something changed, the GCS forwards each report to all others.

All raylets share one view here, changed at the instant a report has passed through the GCS and one
network hop, instead of N copies changed by N messages; that is the only simplification, and a node
cut off from the GCS therefore still sees the others' reports. What a raylet itself has promised of
another node since that node last reported (its spillbacks) is its own: ``Promises``.

``ViewTable`` is the same view in columns, kept from the first decision that looks at many nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID
from raysim.raycore.resources import CPU, GPU, MEMORY, NodeResources, ResourceSet, utilization
from raysim.raycore.tasks import LabelMatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float64]

_KEPT_CHANGES = 8_192


class NodeView:
    """One node as last published."""

    __slots__ = ("draining", "node_id", "pulls_blocked", "resources", "version")

    def __init__(self, node_id: NodeID, resources: NodeResources) -> None:
        self.node_id = node_id
        self.resources = resources
        self.draining = False
        self.pulls_blocked = False
        self.version = 0
        """The view's version when this node last changed."""


class ResourceView:
    """Every live node, by id, in order of id."""

    def __init__(self) -> None:
        self.nodes: dict[NodeID, NodeView] = {}
        self.version = 0
        """Counts changes."""
        self.members = 0
        """Counts joins, leaves and changes of what a node has in all."""
        self._changes: list[NodeID] = []
        self._holders: dict[str, dict[NodeID, None]] = {}
        self._watchers: dict[Callable[[], object], None] = {}
        self._table: ViewTable | None = None

    def join(self, node_id: NodeID, resources: NodeResources) -> None:
        """A node has registered."""
        self._hold(node_id, self._total_of(node_id), resources.total)
        node = self.nodes[node_id] = NodeView(node_id, resources)
        if len(self.nodes) > 1 and next(islice(reversed(self.nodes), 1, None)) > node_id:
            self.nodes = dict(sorted(self.nodes.items()))
        self.members += 1
        self._changed(node_id, node)

    def leave(self, node_id: NodeID) -> None:
        """A node is dead."""
        if node_id in self.nodes:
            self._hold(node_id, self._total_of(node_id), {})
            del self.nodes[node_id]
            self.members += 1
            self._changed(node_id, None)

    def publish(
        self,
        node_id: NodeID,
        available: dict[str, int],
        total: dict[str, int],
        *,
        draining: bool,
        pulls_blocked: bool,
    ) -> None:
        """A report has arrived; of a node that has left, it is dropped."""
        node = self.nodes.get(node_id)
        if node is None:
            return
        if node.resources.total != total:
            self._hold(node_id, node.resources.total, total)
            self.members += 1
        elif node.draining != draining:
            self.members += 1
        node.resources.available = dict(available)
        node.resources.total = dict(total)
        node.draining = draining
        node.pulls_blocked = pulls_blocked
        self._changed(node_id, node)

    def watch(self, changed: Callable[[], object]) -> None:
        """Call ``changed()`` after every change, until ``unwatch``."""
        self._watchers[changed] = None

    def unwatch(self, changed: Callable[[], object]) -> None:
        """Stop; harmless when not watching."""
        self._watchers.pop(changed, None)

    def changed_since(self, version: int) -> list[NodeID] | None:
        """Nodes that changed after the view had that version; None if that was too long ago."""
        count = self.version - version
        if count > len(self._changes):
            return None
        return self._changes[len(self._changes) - count :]

    def holders(self, name: str) -> dict[NodeID, None]:
        """Nodes that have any of a resource."""
        return self._holders.get(name, {})

    def table(self) -> ViewTable:
        """The view in columns."""
        if self._table is None:
            self._table = ViewTable(self)
        return self._table

    def _total_of(self, node_id: NodeID) -> dict[str, int]:
        node = self.nodes.get(node_id)
        return node.resources.total if node is not None else {}

    def _hold(self, node_id: NodeID, before: dict[str, int], after: dict[str, int]) -> None:
        for name in before:
            if name not in after:
                del self._holders[name][node_id]
                if not self._holders[name]:
                    del self._holders[name]
        for name in after:
            if name not in before:
                self._holders.setdefault(name, {})[node_id] = None

    def _changed(self, node_id: NodeID, node: NodeView | None) -> None:
        self.version += 1
        if node is not None:
            node.version = self.version
        self._changes.append(node_id)
        if len(self._changes) > _KEPT_CHANGES:
            del self._changes[: _KEPT_CHANGES // 2]
        if self._table is not None:
            self._table.update(node_id, node)
        for watcher in list(self._watchers):
            watcher()


class ViewTable:
    """Columns over node ids. Of a node that is not there, ``alive`` is False.

    CPU, memory and GPU have columns from the start, other resources from the first request that
    names them if many nodes have them.
    """

    def __init__(self, view: ResourceView) -> None:
        import numpy as np

        self._np = np
        self._view = view
        size = max(16, 2 * (1 + max(view.nodes, default=0)))
        self.versions: Ints = np.zeros(size, np.int64)
        self.alive: Bools = np.zeros(size, np.bool_)
        """In the view and not draining."""
        self.has_gpu: Bools = np.zeros(size, np.bool_)
        self.pulls_blocked: Bools = np.zeros(size, np.bool_)
        self.scores: Floats = np.zeros(size, np.float64)
        """Critical utilisation."""
        self.available: dict[str, Ints] = {}
        self.total: dict[str, Ints] = {}
        self._labels: dict[tuple[LabelMatch, ...], tuple[int, Bools]] = {}
        for name in (CPU, MEMORY, GPU):
            self.column(name)
        for node_id, node in view.nodes.items():
            self.update(node_id, node)

    def update(self, node_id: NodeID, node: NodeView | None) -> None:
        """One node has changed, or left (None)."""
        if node_id >= len(self.alive):
            self._grow(2 * node_id)
        if node is None:
            self.alive[node_id] = False
            self.versions[node_id] = 0
            return
        resources = node.resources
        available, total = resources.available, resources.total
        self.versions[node_id] = node.version
        self.alive[node_id] = not node.draining
        self.has_gpu[node_id] = total.get(GPU, 0) > 0
        self.pulls_blocked[node_id] = node.pulls_blocked
        self.scores[node_id] = utilization(available, total)
        for name, column in self.available.items():
            column[node_id] = available.get(name, 0)
            self.total[name][node_id] = total.get(name, 0)

    def column(self, name: str) -> tuple[Ints, Ints]:
        """(free, in all) of one resource."""
        if name not in self.available:
            np = self._np
            self.available[name] = np.zeros(len(self.alive), np.int64)
            self.total[name] = np.zeros(len(self.alive), np.int64)
            for node_id, node in self._view.nodes.items():
                self.available[name][node_id] = node.resources.available.get(name, 0)
                self.total[name][node_id] = node.resources.total.get(name, 0)
        return self.available[name], self.total[name]

    def labelled(self, selector: tuple[LabelMatch, ...]) -> Bools:
        """Nodes whose labels meet every expression."""
        members, mask = self._labels.get(selector, (-1, None))
        if mask is None or members != self._view.members:
            mask = self._np.zeros(len(self.alive), self._np.bool_)
            for node_id, node in self._view.nodes.items():
                labels = node.resources.labels
                mask[node_id] = all(match.matches(labels) for match in selector)
            self._labels[selector] = (self._view.members, mask)
        return mask

    def _grow(self, size: int) -> None:
        def longer(column: Any) -> Any:
            grown = self._np.zeros(size, column.dtype)
            grown[: len(column)] = column
            return grown

        self.versions, self.alive = longer(self.versions), longer(self.alive)
        self.has_gpu, self.pulls_blocked = longer(self.has_gpu), longer(self.pulls_blocked)
        self.scores = longer(self.scores)
        for columns in (self.available, self.total):
            for name in columns:
                columns[name] = longer(columns[name])
        self._labels.clear()


class Overlay:
    """What one raylet has promised of others, on top of their last reports."""

    __slots__ = ("promised",)

    def __init__(self) -> None:
        self.promised: dict[NodeID, tuple[int, dict[str, int]]] = {}
        """Of a node: its version then, and how much of what."""

    def promise(self, node: NodeView, request: ResourceSet) -> None:
        """Count the request against the node until it reports again."""
        version, promised = self.promised.get(node.node_id, (-1, {}))
        if version != node.version:
            promised = {}
        for name, n in request.units.items():
            promised[name] = promised.get(name, 0) + n
        self.promised[node.node_id] = (node.version, promised)

    def of(self, node: NodeView) -> dict[str, int]:
        """What has been promised of the node and not reported yet."""
        version, promised = self.promised.get(node.node_id, (-1, {}))
        return promised if version == node.version else {}


class PromisedColumns:
    """An ``Overlay`` in the columns of a ``ViewTable``: what is free after the promises.

    A promise holds while the node's version is the one it was made at.
    """

    def __init__(self, table: ViewTable, overlay: Overlay) -> None:
        import numpy as np

        self._np = np
        self._overlay = overlay
        size = len(table.alive)
        self.versions: Ints = np.full(size, -1, np.int64)
        self.scores: Floats = np.zeros(size, np.float64)
        self.available: dict[str, Ints] = {}

    def promised(self, node: NodeView) -> None:
        """The overlay has one more promise of this node."""
        index = node.node_id
        self.reach(index + 1)
        promised = self._overlay.of(node)
        self.versions[index] = node.version
        available, total = node.resources.available, node.resources.total
        left = dict(available)
        for name, n in promised.items():
            left[name] = left.get(name, 0) - n
        self.scores[index] = utilization(left, total)
        for name, column in self.available.items():
            column[index] = left.get(name, 0)

    def where(self, valid: Bools, mine: Any, published: Any) -> Any:
        """A column of ours where a promise holds, the published one elsewhere."""
        return self._np.where(valid, mine[: len(valid)], published)

    def column(self, name: str, nodes: dict[NodeID, NodeView]) -> Ints:
        """What is left of one resource where a promise holds."""
        column = self.available.get(name)
        if column is None:
            column = self.available[name] = self._np.zeros(len(self.versions), self._np.int64)
            for node_id in self._overlay.promised:
                node = nodes.get(node_id)
                if node is not None:
                    left = node.resources.available.get(name, 0)
                    column[node_id] = left - self._overlay.of(node).get(name, 0)
        return column

    def reach(self, size: int) -> None:
        """Be at least as long as the table."""
        if size <= len(self.versions):
            return

        def longer(column: Any) -> Any:
            grown = self._np.full(max(size, 2 * len(column)), -1, column.dtype)
            grown[: len(column)] = column
            return grown

        self.versions, self.scores = longer(self.versions), longer(self.scores)
        for name in self.available:
            self.available[name] = longer(self.available[name])
