"""Where a lease request goes: here, to another node, or to wait until some node could take it.

Real counterpart: ``src/ray/raylet/scheduling/cluster_lease_manager.cc``. The policies always name a
node if any could ever take the request, so what waits here is exactly what is infeasible; what is
only not available waits in the local queue of the node that was named.
"""

from __future__ import annotations

from collections import deque

from raysim.raycore.protocol import ResourceDemand
from raysim.raycore.raylet.lease import Lease, SchedulingClass
from raysim.raycore.raylet.local_lease_manager import LocalLeaseManager
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import ResourceSet
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import LabelMatch, NodeAffinity

Backlog = tuple[ResourceSet, int]


class ClusterLeaseManager:
    """The first decision about every request that reaches this raylet."""

    __slots__ = ("_env", "_local", "_members", "_node_id", "backlogs", "infeasible")

    def __init__(self, env: Surroundings, node_id: int, local: LocalLeaseManager) -> None:
        self._env = env
        self._node_id = node_id
        self._local = local
        self._members = -1
        self.infeasible: dict[SchedulingClass, None] = {}
        self.backlogs: dict[int, tuple[Backlog, ...]] = {}
        """Of each owner: what it has not even asked for yet."""

    def submit(self, lease: Lease) -> None:
        """A request has come."""
        if lease.klass.infeasible or not self._place(lease):
            self.park(lease)

    def park(self, lease: Lease) -> None:
        """No node could take it: wait for one that does."""
        lease.state = "INFEASIBLE"
        klass = lease.klass
        if klass.infeasible is None:
            klass.infeasible = deque()
        klass.infeasible.append(lease)
        self.infeasible[klass] = None
        if self._env.log.enabled:
            self._env.log.note("lease", lease.lease_id, "INFEASIBLE", self._env.sim.now_ns,
                               node_id=self._node_id, detail=lease.spec)  # fmt: skip

    def forget(self, lease: Lease) -> None:
        """It waits no longer."""
        queue = lease.klass.infeasible
        assert queue is not None, f"lease {lease.lease_id} is not infeasible"
        queue.remove(lease)
        if not queue:
            del self.infeasible[lease.klass]

    def nodes_changed(self, view: ResourceView) -> None:
        """Try the first of each infeasible class again, if nodes have come, gone or grown."""
        if self._members == view.members and not self._local.scheduler.local.bundles:
            return
        self._members = view.members
        scheduler = self._local.scheduler
        for klass in list(self.infeasible):
            queue = klass.infeasible
            while queue and (scheduler.feasible_somewhere(klass) or _pinned(klass)):
                lease = queue.popleft()
                if not self._place(lease):
                    queue.appendleft(lease)
                    lease.state = "INFEASIBLE"
                    break
            if not queue:
                del self.infeasible[klass]

    def _place(self, lease: Lease) -> bool:
        """Send it where it belongs; False if there is no such place."""
        request, klass = lease.request, lease.klass
        node_id = self._local.scheduler.best_node(
            klass,
            prioritize_local=request.grant_or_reject or request.selected_by_locality,
            preferred=request.preferred_node,
            actor=request.spec.actor_id != 0,
        )
        if node_id == self._node_id:
            self._local.queue(lease)
        elif node_id is not None:
            self._local.spill(lease, node_id)
        elif _pinned(klass):
            self._local.fail(
                lease,
                "UNSCHEDULABLE",
                "The node specified via NodeAffinitySchedulingStrategy doesn't exist any more or"
                " is infeasible, and soft=False was specified.",
            )
        else:
            return False
        return True

    def load(self) -> tuple[ResourceDemand, ...]:
        """What waits here, by shape."""
        demand: dict[tuple[ResourceSet, tuple[LabelMatch, ...]], int] = {}
        for klass in self.infeasible:
            key = (klass.placement, klass.selector)
            demand[key] = demand.get(key, 0) + len(klass.infeasible or ())
        for klass in self._local.classes:
            key = (klass.placement, klass.selector)
            demand[key] = demand.get(key, 0) + len(klass.to_grant or ())
        for lease in self._local.waiting.values():
            key = (lease.klass.placement, lease.klass.selector)
            demand[key] = demand.get(key, 0) + 1
        for backlogs in self.backlogs.values():
            for resources, tasks in backlogs:
                demand[resources, ()] = demand.get((resources, ()), 0) + tasks
        most = self._env.config.max_resource_shapes_per_load_report
        rows = [ResourceDemand(r, n, labels) for (r, labels), n in demand.items() if n]
        return tuple(rows[:most]) if most >= 0 else tuple(rows)

    @property
    def something_waits(self) -> bool:
        """Whether ``load`` has anything to say."""
        local = self._local
        return bool(
            self.infeasible or local.waiting or self.backlogs
            or any(klass.to_grant for klass in local.classes)
        )  # fmt: skip

    @property
    def others_matter(self) -> bool:
        """Whether what other nodes have may move what waits here; also when nothing waits."""
        local = self._local
        if self.infeasible or not local.waiting or any(klass.to_grant for klass in local.classes):
            return True
        return local.waiting[next(reversed(local.waiting))].klass.strategy != "SPREAD"


def _pinned(klass: SchedulingClass) -> bool:
    """Whether it may run on one node only."""
    strategy = klass.strategy
    return isinstance(strategy, NodeAffinity) and (
        not strategy.soft or strategy.fail_on_unavailable
    )
