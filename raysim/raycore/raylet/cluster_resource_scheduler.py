"""Chooses a node for a request, from this node's own resources and the view of the others.

Real counterpart: ``src/ray/raylet/scheduling/cluster_resource_scheduler.cc``
(``GetBestSchedulableNode``) and ``local_resource_manager.cc``. A request that names no preferred
node, as every one from an owner does, runs the policy with this node preferred; one that was sent
here on purpose (``grant_or_reject``, or for its arguments) stays if there is room, whatever the
policy would say.

Nodes that drain take no part at all, as in Ray's ``NodeAvailable``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID
from raysim.raycore.raylet import policies
from raysim.raycore.raylet.lease import SchedulingClass
from raysim.raycore.resource_view import NodeView, Overlay, PromisedColumns
from raysim.raycore.resources import CPU, GPU, MEMORY, NodeResources, ResourceSet, utilization
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import NodeAffinity, NodeLabels

if TYPE_CHECKING:
    from raysim.raycore.raylet.policies import Bools

_DENSE = frozenset({CPU, MEMORY, GPU})
_SCAN_AT_MOST = 64
"""A resource on more nodes than that gets a column."""
_HYBRID = -2
_BATCH = 64
_CHECK_AT_MOST = 64
"""After more changes than that a stuck request is decided anew."""


class ClusterResourceScheduler:
    """One raylet's knowledge of resources, and its choices."""

    __slots__ = (
        "_columns", "_config", "_cursor", "_drawn", "_overlay", "_rng", "_rng_name", "_sim",
        "_view", "draining", "local", "node_id", "pulls_blocked",
    )  # fmt: skip

    def __init__(self, env: Surroundings, node_id: NodeID, local: NodeResources) -> None:
        self.node_id = node_id
        self.local = local
        """What counts of this node; the view has only what was reported."""
        self.draining = False
        self.pulls_blocked = False
        self._view = env.view
        self._config = env.config
        self._sim = env.sim
        self._overlay: Overlay | None = None
        self._columns: PromisedColumns | None = None
        self._rng_name = f"node-{node_id}/raylet/policy"
        self._rng: Any = None
        self._drawn: list[float] = []
        self._cursor = 0

    def best_node(
        self,
        klass: SchedulingClass,
        *,
        prioritize_local: bool = False,
        preferred: NodeID = -1,
        exclude_local: bool = False,
        requires_object_store_memory: bool = False,
        actor: bool = False,
    ) -> NodeID | None:
        """The node to go to, be it to wait there; None: no node could ever take it."""
        me, local = self.node_id, self.local
        strategy = klass.strategy
        plain = strategy.__class__ is str or klass.group
        if (
            not exclude_local
            and not self.draining
            and self._local_is_free(klass, pulls=False)  # what waits for room here is spilled later
        ):
            if prioritize_local:
                return me
            if (
                plain and strategy != "SPREAD" and preferred in (-1, me)
                and (klass.placement.units or not actor)
                and (klass.wants_gpu or GPU not in local.total
                     or not self._config.scheduler_avoid_gpu_nodes)
                and utilization(local.available, local.total)
                < self._config.scheduler_spread_threshold
            ):  # fmt: skip
                return me
        if prioritize_local:
            preferred = me
        request = klass.placement
        chosen = self._run_policy(
            klass, request, me if preferred < 0 else preferred,
            exclude_local=exclude_local, pulls=requires_object_store_memory, actor=actor,
        )  # fmt: skip
        if (
            chosen is not None and chosen != me and prioritize_local and not self.draining
            and not self.could_take(chosen, klass, pulls=requires_object_store_memory)
            and self.feasible_here(klass)
        ):  # fmt: skip
            return me  # no better anywhere: wait here
        return chosen

    def feasible_here(self, klass: SchedulingClass) -> bool:
        """Whether this node could ever take it."""
        return (
            not self.draining
            and self.local.fits(klass.placement)
            and (not klass.selector or all(m.matches(self.local.labels) for m in klass.selector))
        )

    def feasible_somewhere(self, klass: SchedulingClass) -> bool:
        """Whether any node could ever take it."""
        if self.feasible_here(klass):
            return True
        return any(self._fits(node, klass) for node in self._view.nodes.values())

    def could_take(self, node_id: NodeID, klass: SchedulingClass, *, pulls: bool = False) -> bool:
        """Whether another node has it free now (and room for pulls), as far as is known here."""
        node = self._view.nodes.get(node_id)
        if node is None or node.draining or (pulls and node.pulls_blocked):
            return False
        available = node.resources.available
        promised = self._overlay.of(node) if self._overlay is not None else {}
        for name, n in klass.placement.units.items():
            if available.get(name, 0) - promised.get(name, 0) < n:
                return False
        labels = node.resources.labels
        return not klass.selector or all(match.matches(labels) for match in klass.selector)

    def still_stuck(self, klass: SchedulingClass) -> bool:
        """Whether nothing has changed for a class that no other node could take before."""
        version = self._view.version
        if klass.stuck_at == version:
            return True
        if klass.stuck_at < 0:
            return False
        changed = self._view.changed_since(klass.stuck_at)
        if changed is None or len(changed) > _CHECK_AT_MOST:
            return False
        for node_id in changed:
            if node_id != self.node_id and self.could_take(node_id, klass):
                return False
        klass.stuck_at = version
        return True

    def stuck(self, klass: SchedulingClass) -> None:
        """No other node can take it now."""
        klass.stuck_at = self._view.version

    def promise(self, node_id: NodeID, request: ResourceSet) -> None:
        """Count a spillback against the other node until it reports again."""
        node = self._view.nodes.get(node_id)
        if node is None:
            return
        if self._overlay is None:
            self._overlay = Overlay()
        self._overlay.promise(node, request)
        if self._columns is not None:
            self._columns.promised(node)

    # the policies' columns

    def _run_policy(
        self,
        klass: SchedulingClass,
        request: ResourceSet,
        preferred: NodeID,
        *,
        exclude_local: bool,
        pulls: bool,
        actor: bool,
    ) -> NodeID | None:
        strategy, me = klass.strategy, self.node_id
        if isinstance(strategy, NodeAffinity):
            pinned = self._affinity(klass, strategy, exclude_local=exclude_local, pulls=pulls)
            if pinned != _HYBRID:
                return pinned
        if len(self._view.nodes) <= 1 and (me in self._view.nodes or not self._view.nodes):
            return me if not exclude_local and self.feasible_here(klass) else None
        available, scores = self._masks(klass, request, preferred, pulls=pulls)
        if exclude_local:
            available[me] = False

        def feasible() -> Bools:
            mask = self._feasible(klass, request)
            if exclude_local:
                mask[me] = False
            return mask

        if actor and not request.units:
            return policies.anyone(feasible(), self._draw)
        if strategy == "SPREAD":
            chosen = policies.spread(available, feasible, self._cursor)
            if chosen is not None:
                self._cursor = chosen + 1
            return chosen
        table, config = self._view.table(), self._config
        if isinstance(strategy, NodeLabels):
            soft = table.labelled(strategy.soft)
            return policies.labelled(available, feasible, soft, self._draw)
        avoid = (
            config.scheduler_avoid_gpu_nodes
            and not klass.wants_gpu
            and bool(self._view.holders(GPU) or GPU in self.local.total)
        )
        return policies.hybrid(
            available, feasible, scores, table.has_gpu if avoid else None,
            preferred=-1 if exclude_local and preferred == me else preferred,
            k=policies.top_k(
                len(self._view.nodes), config.scheduler_top_k_fraction,
                config.scheduler_top_k_absolute,
            ),
            threshold=config.scheduler_spread_threshold, draw=self._draw,
        )  # fmt: skip

    def _affinity(
        self, klass: SchedulingClass, strategy: NodeAffinity, *, exclude_local: bool, pulls: bool
    ) -> NodeID | None:
        """The node it is bound to if that will do, None if nothing else may; else ``_HYBRID``."""
        target, me = strategy.node_id, self.node_id
        if not (target == me and exclude_local) and self._feasible_at(target, klass):
            if not (strategy.spill_on_unavailable or strategy.fail_on_unavailable):
                return target
            here = target == me
            if self._local_is_free(klass, pulls) if here else self.could_take(target, klass):
                return target
        return None if not strategy.soft or strategy.fail_on_unavailable else _HYBRID

    def _masks(
        self, klass: SchedulingClass, request: ResourceSet, preferred: NodeID, *, pulls: bool
    ) -> tuple[Bools, Any]:
        """Where it is available now, and everyone's critical utilisation."""
        view, me = self._view, self.node_id
        table = view.table()
        valid = self._valid_promises()
        mask, scores = table.alive.copy(), table.scores
        for name, n in request.units.items():
            free = self._column(name)
            if free is None:
                mask &= self._scan(name, n, promised=True)
                continue
            if valid is not None and self._columns is not None:
                left = self._columns.column(name, view.nodes)
                mask &= self._columns.where(valid, left, free) >= n
            else:
                mask &= free >= n
        if valid is not None and self._columns is not None:
            scores = self._columns.where(valid, self._columns.scores, scores)
        else:
            scores = scores.copy()
        if klass.selector:
            mask &= table.labelled(klass.selector)
        if pulls:
            blocked = table.pulls_blocked.copy()
            blocked[preferred] = False
            mask &= ~blocked
        if me < len(mask):
            mask[me] = not self.draining and self._local_is_free(klass, pulls and preferred != me)
            scores[me] = utilization(self.local.available, self.local.total)
        return mask, scores

    def _feasible(self, klass: SchedulingClass, request: ResourceSet) -> Bools:
        table = self._view.table()
        mask = table.alive.copy()
        for name, n in request.units.items():
            if self._column(name) is None:
                mask &= self._scan(name, n, promised=False)
            else:
                mask &= table.total[name] >= n
        if klass.selector:
            mask &= table.labelled(klass.selector)
        if self.node_id < len(mask):
            mask[self.node_id] = self.feasible_here(klass)
        return mask

    def _column(self, name: str) -> Any:
        """The column of a resource that many nodes have, or None."""
        table = self._view.table()
        column = table.available.get(name)
        if column is None and len(self._view.holders(name)) > _SCAN_AT_MOST:
            column = table.column(name)[0]
        return column

    def _scan(self, name: str, n: int, *, promised: bool) -> Bools:
        """Where a rare resource is, node by node."""
        view = self._view
        mask = view.table().alive & False
        for node_id in view.holders(name):
            node = view.nodes[node_id]
            if promised:
                left = node.resources.available.get(name, 0)
                left -= self._overlay.of(node).get(name, 0) if self._overlay is not None else 0
            else:
                left = node.resources.total.get(name, 0)
            mask[node_id] = left >= n
        return mask

    def _valid_promises(self) -> Any:
        """Which promises hold; None if none does, and then they are forgotten."""
        if self._overlay is None:
            return None
        table = self._view.table()
        if self._columns is None:
            self._columns = PromisedColumns(table, self._overlay)
            for node_id in self._overlay.promised:
                node = self._view.nodes.get(node_id)
                if node is not None and self._overlay.of(node):
                    self._columns.promised(node)
        self._columns.reach(len(table.alive))
        valid = self._columns.versions[: len(table.alive)] == table.versions
        if not valid.any():
            self._overlay = self._columns = None
            return None
        return valid

    # this node and others, one at a time

    def _local_is_free(self, klass: SchedulingClass, pulls: bool) -> bool:
        if not self.local.has(klass.placement) or (pulls and self.pulls_blocked):
            return False
        return not klass.selector or all(m.matches(self.local.labels) for m in klass.selector)

    def _feasible_at(self, node_id: NodeID, klass: SchedulingClass) -> bool:
        if node_id == self.node_id:
            return self.feasible_here(klass)
        node = self._view.nodes.get(node_id)
        return node is not None and self._fits(node, klass)

    def _fits(self, node: NodeView, klass: SchedulingClass) -> bool:
        if node.draining or not node.resources.fits(klass.placement):
            return False
        labels = node.resources.labels
        return not klass.selector or all(match.matches(labels) for match in klass.selector)

    def _draw(self, below: int) -> int:
        """A uniform integer, from doubles drawn by the batch."""
        if not self._drawn:
            if self._rng is None:
                self._rng = self._sim.rng(self._rng_name)
            self._drawn = self._rng.random(_BATCH).tolist()
        return int(self._drawn.pop() * below)
