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
from raysim.raycore.raylet.idle_nodes import IdleNodes, Kind
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
"""After more changes than that a request is decided anew, over all nodes."""
_BOOKS_FROM = 128
"""Nodes from which on it is worth to keep books of those that are idle."""


class ClusterResourceScheduler:
    """One raylet's knowledge of resources, and its choices."""

    __slots__ = (
        "_columns", "_config", "_cursor", "_drawn", "_idle_nodes", "_looked_at", "_overlay", "_rng",
        "_rng_name", "_sim", "_view", "draining", "local", "node_id", "pulls_blocked",
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
        self._idle_nodes: IdleNodes | None = None
        self._looked_at: tuple[Kind | None, int] = None, 0
        """For what, and at which version of the view, all nodes were last looked at."""
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
        if self._idle_nodes is not None:
            self._note(self._idle_nodes, node_id)

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
        kind = None
        others = -1 if exclude_local and preferred == me else preferred
        k = policies.top_k(
            len(self._view.nodes), self._config.scheduler_top_k_fraction,
            self._config.scheduler_top_k_absolute,
        )  # fmt: skip
        if request.units and not pulls and self._has_books(strategy):
            kind = self._kind(klass, request)
            chosen = self._of_idle_nodes(kind, klass, others, k, exclude_local=exclude_local)
            if chosen is not None:
                return chosen
        available, scores = self._masks(klass, request, preferred, pulls=pulls)
        left_out = [me] if exclude_local else []
        available[left_out] = False

        def feasible() -> Bools:
            mask = self._feasible(klass, request)
            mask[left_out] = False
            return mask

        if actor and not request.units:
            return policies.anyone(feasible(), self._draw)
        if strategy == "SPREAD":
            chosen = policies.spread(available, feasible, self._cursor)
            if chosen is not None:
                self._cursor = chosen + 1
            return chosen
        table = self._view.table()
        if isinstance(strategy, NodeLabels):
            soft = table.labelled(strategy.soft)
            return policies.labelled(available, feasible, soft, self._draw)
        avoid = self._avoids_gpus(klass)
        if kind is not None:
            self._keep_books(kind, available & ~table.has_gpu if avoid else available, scores)
        return policies.hybrid(
            available, feasible, scores, table.has_gpu if avoid else None, preferred=others, k=k,
            threshold=self._config.scheduler_spread_threshold, draw=self._draw,
        )  # fmt: skip

    def _has_books(self, strategy: Any) -> bool:
        """Whether the hybrid policy decides, over so many nodes that books pay."""
        spread = strategy == "SPREAD" or isinstance(strategy, NodeLabels)
        return not spread and len(self._view.nodes) >= _BOOKS_FROM

    def _avoids_gpus(self, klass: SchedulingClass) -> bool:
        """Whether nodes with GPUs come last."""
        return (
            self._config.scheduler_avoid_gpu_nodes
            and not klass.wants_gpu
            and bool(self._view.holders(GPU) or GPU in self.local.total)
        )

    # books of idle nodes

    def _kind(self, klass: SchedulingClass, request: ResourceSet) -> Kind:
        return Kind(
            tuple(request.units.items()), klass.selector, self._avoids_gpus(klass),
            self._config.scheduler_spread_threshold,
        )  # fmt: skip

    def _of_idle_nodes(
        self, kind: Kind, klass: SchedulingClass, preferred: NodeID, k: int, *, exclude_local: bool
    ) -> NodeID | None:
        """The hybrid policy's choice if the books tell; None if all nodes must be looked at."""
        books, view, me = self._idle_nodes, self._view, self.node_id
        if books is None or books.kind != kind or me >= len(view.table().alive):
            return None
        changed = view.changed_since(books.version)
        if changed is None or len(changed) > _CHECK_AT_MOST:
            self._idle_nodes = None
            return None
        for node_id in changed:
            self._note(books, node_id)
        books.version = view.version
        local = self.local
        here = not (exclude_local or self.draining) and self._local_is_free(klass, pulls=False)
        if here and kind.avoid_gpu:
            here = not view.table().has_gpu[me]
        idle = here and utilization(local.available, local.total) < kind.threshold
        books.note(me, free=here, idle=idle)
        return books.choose(preferred, k, self._draw)

    def _note(self, books: IdleNodes, node_id: NodeID) -> None:
        """Look at one other node."""
        node = self._view.nodes.get(node_id)
        if node_id == self.node_id:
            return
        if node is None or node.draining:
            books.note(node_id, free=False, idle=False)
            return
        left, total = node.resources.available, node.resources.total
        promised = self._overlay.of(node) if self._overlay is not None else {}
        if promised:
            left = dict(left)
            for name, n in promised.items():
                left[name] = left.get(name, 0) - n
        kind, labels = books.kind, node.resources.labels
        free = (
            all(left.get(name, 0) >= n for name, n in kind.request)
            and not (kind.avoid_gpu and total.get(GPU, 0) > 0)
            and all(match.matches(labels) for match in kind.selector)
        )
        books.note(node_id, free=free, idle=free and utilization(left, total) < kind.threshold)

    def _keep_books(self, kind: Kind, available: Bools, scores: Any) -> None:
        """Keep books from now on if decisions of this kind come faster than nodes change."""
        version = self._view.version
        if self._looked_at[0] == kind and version - self._looked_at[1] <= _CHECK_AT_MOST:
            self._idle_nodes = IdleNodes(kind, version, available, scores)
        self._looked_at = kind, version

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
