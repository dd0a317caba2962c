"""Placing one group: choose nodes, prepare on all of them, commit on all of them, or undo.

Real counterpart: ``src/ray/gcs/gcs_placement_group_scheduler.cc``. A two-phase commit: what the
bundles need is held back in the GCS's own view, every raylet concerned is asked to hold it back too
(prepare), and only if all of them did is any told to offer it under the group's names (commit). If
one refuses, the others undo. A node that dies between the phases loses its bundles only: the rest
stays, and the group is rescheduled for what it lacks.

What is under way is part of the table (``preparing``), so that a restarted GCS can undo it; Ray
asks raylets to release whatever it does not know of (``ReleaseUnusedBundles``), to the same effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from raysim.raycore.gcs.bundle_policies import place
from raysim.raycore.gcs.tables import GcsPlacementGroup
from raysim.raycore.ids import NodeID, PlacementGroupID
from raysim.raycore.protocol import (
    Bundle,
    CancelResourceReserve,
    CommitBundleResources,
    PrepareBundleResources,
)
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs

_CANCEL_TRIES = 5
_CANCEL_RETRY_NS = NS_PER_S


class _Placement:
    """One attempt at one group (``LeaseStatusTracker``)."""

    __slots__ = ("answers_due", "cancelled", "done", "group", "lost", "refused", "where")

    def __init__(self, group: GcsPlacementGroup, where: dict[int, NodeID]) -> None:
        self.group = group
        self.where = where
        """Bundle index to node."""
        self.answers_due = 0
        self.done: dict[int, None] = {}
        """Bundles prepared, and in the second phase committed."""
        self.refused: dict[int, None] = {}
        """Bundles that their node would not prepare."""
        self.cancelled = False
        """The group was removed meanwhile."""
        self.lost: dict[int, None] = {}
        """Bundles whose node has died since."""

    def still_there(self) -> dict[int, NodeID]:
        """Bundles and nodes without those lost."""
        return {i: n for i, n in self.where.items() if i not in self.lost}


class GcsPlacementGroupScheduler:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._rpc_ns = gcs.env.costs.gcs_prepare_commit_ns
        self._under_way: dict[PlacementGroupID, _Placement] = {}
        self._releasing = 0
        """After a restart: undoing of bundles not yet confirmed; nothing is placed before."""

    def start(self, group: GcsPlacementGroup) -> None:
        """Place what the group lacks."""
        spec, unplaced = group.spec, group.unplaced()
        if group.state == "REMOVED" or self._releasing:
            self._gcs.groups.failed(group, feasible=True)
            return
        chosen = place(
            spec.strategy,
            [spec.bundles[i] for i in unplaced],
            list(self._gcs.tables.nodes.values()),
            in_use=frozenset(group.nodes),
            soft_target=spec.soft_target_node,
        )
        if isinstance(chosen, str):
            self._gcs.groups.failed(group, feasible=chosen == "FAILED")
            return
        where = dict(zip(unplaced, chosen, strict=True))
        placement = _Placement(group, where)
        assert spec.group not in self._under_way, f"group {spec.group} is being placed twice"
        self._under_way[spec.group] = placement
        group.preparing = where
        for i, node_id in where.items():
            self._gcs.tables.nodes[node_id].take(spec.bundles[i].resources)
        self._ask(placement, where, self._send_prepare)

    def cancel(self, group: GcsPlacementGroup) -> None:
        """The group has been removed: undo what is committed now, what is under way later.

        What was committed is free in the GCS's own view once its raylet reports it, not before.
        """
        placement = self._under_way.get(group.spec.group)
        under_way: dict[int, NodeID] = {}
        if placement is not None:
            placement.cancelled = True
            under_way = placement.where
        placed = {i: n for i, n in enumerate(group.nodes) if n >= 0 and i not in under_way}
        self._undo(group, placed)

    # Prepare

    def _ask(
        self,
        placement: _Placement,
        where: dict[int, NodeID],
        send: Callable[[tuple[_Placement, NodeID, list[int]]], object],
    ) -> None:
        """One request per node, one after the other."""
        of_node = _by_node(where.items())
        placement.answers_due = len(of_node)
        placement.done = {}
        for node_id, indices in of_node.items():
            self._gcs.work(self._rpc_ns, send, (placement, node_id, indices))

    def _send_prepare(self, request: tuple[_Placement, NodeID, list[int]]) -> None:
        placement, node_id, indices = request
        message = PrepareBundleResources(_bundles(placement.group, indices))
        self._call(node_id, message, _Phase(placement, indices, self._prepared).answered)

    def _prepared(self, placement: _Placement, indices: list[int], answer: Any) -> None:
        if answer is True:
            placement.done.update(dict.fromkeys(indices))
        elif answer is False:
            placement.refused.update(dict.fromkeys(indices))
        placement.answers_due -= 1
        if placement.answers_due:
            return
        group, where = placement.group, placement.where
        if placement.cancelled or placement.lost or len(placement.done) < len(where):
            # also where a node died and came back: it may have prepared and not been heard
            self._undo(group, {i: n for i, n in where.items() if i not in placement.refused})
            self._give_back(group, placement.still_there())
            self._end(placement)
            self._gcs.groups.failed(group, feasible=True)
            return
        for i, node_id in where.items():
            group.nodes[i] = node_id
        group.state = "PREPARED"
        self._gcs.groups.changed(group)
        self._commit(placement)

    # Commit

    def _commit(self, placement: _Placement) -> None:
        self._ask(placement, placement.where, self._send_commit)

    def _send_commit(self, request: tuple[_Placement, NodeID, list[int]]) -> None:
        placement, node_id, indices = request
        message = CommitBundleResources(_bundles(placement.group, indices))
        self._call(node_id, message, _Phase(placement, indices, self._committed).answered)

    def _committed(self, placement: _Placement, indices: list[int], answer: Any) -> None:
        if answer is True:
            placement.done.update(dict.fromkeys(indices))
        placement.answers_due -= 1
        if placement.answers_due:
            return
        group, there = placement.group, placement.still_there()
        self._end(placement)
        if placement.cancelled:
            self._undo(group, there)
            self._give_back(group, there)
            self._gcs.groups.failed(group, feasible=True)
            return
        refused = {i: n for i, n in there.items() if i not in placement.done}
        self._undo(group, refused)
        self._give_back(group, refused)
        for i in placement.where:
            if i in placement.lost or i in refused:
                group.nodes[i] = -1
        if refused:
            group.state = "RESCHEDULING"
            self._gcs.groups.changed(group)
            self._gcs.groups.failed(group, feasible=True)
        else:
            self._gcs.groups.succeeded(group)

    def _end(self, placement: _Placement) -> None:
        del self._under_way[placement.group.spec.group]
        placement.group.preparing = {}

    # Undo

    def on_node_dead(self, node_id: NodeID) -> None:
        """What is being placed there is lost; the answers under way come as failures."""
        for placement in self._under_way.values():
            for i, n in placement.where.items():
                if n == node_id:
                    placement.lost[i] = None

    def _undo(self, group: GcsPlacementGroup, where: dict[int, NodeID]) -> None:
        """Have raylets give up prepared or committed bundles."""
        for node_id, indices in _by_node(where.items()).items():
            message = CancelResourceReserve(_bundles(group, indices))
            _Cancel(self._gcs, node_id, message, self._ignore).send()

    def _give_back(self, group: GcsPlacementGroup, where: dict[int, NodeID]) -> None:
        """Free it in the GCS's own view."""
        for i, node_id in where.items():
            node = self._gcs.nodes.alive(node_id)
            if node is not None:
                node.give_back(group.spec.bundles[i].resources)

    def _call(self, node_id: NodeID, message: Any, then: Callable[[Any], object]) -> None:
        node = self._gcs.nodes.alive(node_id)
        self._gcs.nodes.call(node_id, node.address if node is not None else "", message, then)

    def _ignore(self) -> None:
        """Nobody waits for it."""

    # Restart of the GCS

    def recover(self, groups: Iterable[GcsPlacementGroup]) -> None:
        """Commit what was prepared on all nodes; undo what was not."""
        for group in groups:
            if not group.preparing:
                continue
            if group.state == "PREPARED":
                placement = _Placement(group, group.preparing)
                self._under_way[group.spec.group] = placement
                self._commit(placement)
                continue
            for node_id, indices in _by_node(group.preparing.items()).items():
                self._releasing += 1
                message = CancelResourceReserve(_bundles(group, indices))
                _Cancel(self._gcs, node_id, message, self._released).send()
            group.preparing = {}

    def _released(self) -> None:
        self._releasing -= 1

    def wrong(self) -> str:
        """What must never be: half a group, or bundles on nodes that are gone."""
        alive = self._gcs.tables.nodes
        for group_id, group in self._gcs.tables.groups.items():
            placed = [n for n in group.nodes if n >= 0]
            whole = len(placed) == len(group.nodes)
            if any(n not in alive for n in placed):
                return f"group {group_id} is on nodes {placed}, of which some are dead"
            if group.state == "PENDING" and placed:
                return f"group {group_id} is PENDING and has bundles on {placed}"
            if group.state == "CREATED" and not whole:
                return f"group {group_id} is CREATED with nodes {group.nodes}"
            if group.state == "PREPARED" and group_id not in self._under_way:
                return f"group {group_id} is PREPARED and nobody commits it"
        return ""


def _by_node(where: Iterable[tuple[int, NodeID]]) -> dict[NodeID, list[int]]:
    of_node: dict[NodeID, list[int]] = {}
    for i, node_id in where:
        of_node.setdefault(node_id, []).append(i)
    return of_node


def _bundles(group: GcsPlacementGroup, indices: list[int]) -> tuple[Bundle, ...]:
    return tuple(group.spec.bundles[i] for i in indices)


class _Phase:
    """A raylet's answer to prepare or commit."""

    __slots__ = ("_indices", "_placement", "_then")

    def __init__(
        self,
        placement: _Placement,
        indices: list[int],
        then: Callable[[_Placement, list[int], Any], object],
    ) -> None:
        self._placement, self._indices, self._then = placement, indices, then

    def answered(self, answer: Any) -> None:
        """Or the node's death."""
        self._then(self._placement, self._indices, answer)


class _Cancel:
    """Undo on one node: tried five times, a second apart, while the raylet asked first lives.

    One started since holds nothing of what is undone, and may by then hold the same bundles anew.
    """

    __slots__ = ("_done", "_gcs", "_message", "_node", "_node_id", "_tries")

    def __init__(
        self,
        gcs: Gcs,
        node_id: NodeID,
        message: CancelResourceReserve,
        done: Callable[[], object],
    ) -> None:
        self._gcs, self._node_id, self._message, self._done = gcs, node_id, message, done
        self._node = gcs.nodes.alive(node_id)
        self._tries = 0

    def send(self, _: object = None) -> None:
        """Once more, or never again."""
        node = self._gcs.nodes.alive(self._node_id)
        if node is None or node is not self._node or self._tries == _CANCEL_TRIES:
            self._done()
            return
        self._tries += 1
        self._gcs.nodes.call(self._node_id, node.address, self._message, self._answered)

    def _answered(self, answer: Any) -> None:
        if answer is None or answer is True:
            self._done()
        else:
            self._gcs.after(_CANCEL_RETRY_NS, self.send)
