"""The placement group table and its queue: one group at a time.

Real counterpart: ``src/ray/gcs/gcs_placement_group_manager.cc``. A group is written down, its
creator answered, and then it waits in a queue ordered by when it may be tried. A group for which
there is no room at present may be tried again after 100 ms, 150, 225, ... up to 1 s; one that no
set of the living nodes could hold waits for a node to join. A group that lost bundles with a node
goes to the head of the queue.

The queue is looked at when a group arrives, when the one being placed has ended either way, when a
node joins, and once per second; not when a retry falls due. So a group that waits alone is tried
once per second, and one among others as soon as its time has come and another one ends.

Difference: rescheduling that fails is retried with the same delays (as in releases after 2.60)
rather than at once, which keeps the GCS spinning until there is room.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from raysim.kernel.clock import Handle
from raysim.kernel.component import Reply
from raysim.raycore.gcs.tables import GcsPlacementGroup
from raysim.raycore.ids import ActorID, JobID, NodeID, PlacementGroupID
from raysim.raycore.protocol import (
    CreatePlacementGroup,
    GetPlacementGroups,
    PlacementGroupTableData,
)
from raysim.raycore.tasks import TaskError
from raysim.units import NS_PER_MS, NS_PER_S

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs

_TICK_NS = NS_PER_S


class GcsPlacementGroupManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._table = gcs.tables.groups
        self._removed = gcs.tables.removed_groups
        self._names = gcs.tables.group_names
        config = gcs.env.config
        self._min_delay_ns = config.gcs_create_placement_group_retry_min_interval_ms * NS_PER_MS
        self._max_delay_ns = config.gcs_create_placement_group_retry_max_interval_ms * NS_PER_MS
        self._multiplier = config.gcs_create_placement_group_retry_multiplier
        self._queue: list[tuple[int, int, GcsPlacementGroup]] = []
        """(when it may be tried, number of the entry, group); an entry whose number its group no
        longer carries is void."""
        self._entries = 0
        self._infeasible: dict[PlacementGroupID, GcsPlacementGroup] = {}
        self._waiters: dict[PlacementGroupID, list[Reply]] = {}
        self._in_progress: PlacementGroupID = 0
        self._tick: Handle | None = None

    # From programs

    def create(self, m: CreatePlacementGroup) -> TaskError | None:
        """Write it down, and look at the queue."""
        if m.group in self._table or m.group in self._removed:
            return None  # sent again after a restart of the GCS
        key = (m.ray_namespace, m.name)
        if m.name:
            if key in self._names:
                return TaskError(
                    "TASK_UNSCHEDULABLE_ERROR",
                    f"Failed to create placement group '{m.group}' because name '{m.name}' already"
                    " exists.",
                )
            self._names[key] = m.group
        detached = self._gcs.actors.is_detached(m.creator_actor)
        group = self._table[m.group] = GcsPlacementGroup(m, creator_is_detached=detached)
        self.changed(group)
        if not m.detached and self._gcs.jobs.is_dead(m.job_id):
            self.remove(m.group)
            return None
        self._enqueue(group, self._gcs.sim.now_ns)
        self._schedule_pending()
        return None

    def wait(self, group_id: PlacementGroupID, reply: Reply) -> None:
        """Answered when it is there, or removed; it may not have been created yet."""
        group = self._table.get(group_id)
        if group_id in self._removed:
            reply(False)
        elif group is not None and group.state == "CREATED":
            reply(True)
        else:
            self._waiters.setdefault(group_id, []).append(reply)

    def remove(self, group_id: PlacementGroupID) -> None:
        """Undo it wherever it stands; a second time does nothing."""
        group = self._table.pop(group_id, None)
        if group is None:
            return
        key = (group.spec.ray_namespace, group.spec.name)
        if group.spec.name and self._names.get(key) == group_id:
            del self._names[key]
        self._gcs.bundle_scheduler.cancel(group)
        group.queued = 0
        self._infeasible.pop(group_id, None)
        group.state = "REMOVED"
        group.nodes = [-1] * len(group.nodes)
        self._removed[group_id] = group
        self.changed(group)
        self._answer(group_id, ready=False)

    def rows(self, m: GetPlacementGroups) -> tuple[PlacementGroupTableData, ...]:
        """One by id or name, or all, removed ones last."""
        if m.group or m.name:
            group_id = m.group or self._names.get((m.ray_namespace, m.name), 0)
            group = self._table.get(group_id) or self._removed.get(group_id)
            return () if group is None else (group.row(),)
        return tuple(g.row() for g in [*self._table.values(), *self._removed.values()])

    def waiting(self) -> list[GcsPlacementGroup]:
        """Those without room, for the autoscaler: in the queue first, then the infeasible."""
        queued = sorted(e for e in self._queue if e[2].queued == e[1])
        groups = [*(e[2] for e in queued), *self._infeasible.values()]
        return [g for g in groups if g.state in ("PENDING", "RESCHEDULING")]

    # The queue

    def _enqueue(self, group: GcsPlacementGroup, rank_ns: int) -> None:
        self._entries += 1
        group.queued = self._entries
        heapq.heappush(self._queue, (rank_ns, self._entries, group))

    def _enqueue_retry(self, group: GcsPlacementGroup) -> None:
        group.delay_ns = min(
            int(group.delay_ns * self._multiplier) or self._min_delay_ns, self._max_delay_ns
        )
        self._enqueue(group, self._gcs.sim.now_ns + group.delay_ns)

    def _schedule_pending(self, _: object = None) -> None:
        """Begin with the first that may be tried, if none is being placed."""
        if self._in_progress:
            return
        queue, now_ns = self._queue, self._gcs.sim.now_ns
        while queue:
            rank_ns, number, group = queue[0]
            if group.queued != number:
                heapq.heappop(queue)
                continue
            if rank_ns > now_ns:
                self._arm(rank_ns)
                return
            heapq.heappop(queue)
            group.queued = 0
            self._in_progress = group.spec.group
            if group.delay_ns:  # the first attempt is part of what creation costs
                cost_ns = self._gcs.env.costs.gcs_placement_group_ns
                self._gcs.work(cost_ns, self._gcs.bundle_scheduler.start, group)
            else:
                self._gcs.bundle_scheduler.start(group)
            return

    def _arm(self, rank_ns: int) -> None:
        """Look again at the first whole second, since the start of the GCS, from then on."""
        if self._tick is not None:
            self._gcs.sim.cancel(self._tick)
        since_ns = rank_ns - self._gcs.started_ns
        at_ns = self._gcs.started_ns + -(-since_ns // _TICK_NS) * _TICK_NS
        self._tick = self._gcs.after(at_ns - self._gcs.sim.now_ns, self._ticked)

    def _ticked(self, _: object) -> None:
        self._tick = None
        self._schedule_pending()

    # From the scheduler

    def failed(self, group: GcsPlacementGroup, *, feasible: bool) -> None:
        """It could not be placed (completely)."""
        if self._in_progress == group.spec.group:
            self._in_progress = 0
        if group.state == "REMOVED":
            pass
        elif not feasible:
            self._infeasible[group.spec.group] = group
        else:
            self._enqueue_retry(group)
        self._gcs.after(0, self._schedule_pending)

    def succeeded(self, group: GcsPlacementGroup) -> None:
        """Every bundle is committed; some may have been lost again with their node."""
        if self._in_progress == group.spec.group:
            self._in_progress = 0
        group.delay_ns = 0
        if group.unplaced():
            self._reschedule(group)
        else:
            group.state = "CREATED"
            self.changed(group)
            self._answer(group.spec.group, ready=True)
        self._gcs.after(0, self._schedule_pending)

    def _reschedule(self, group: GcsPlacementGroup) -> None:
        group.state = "RESCHEDULING"
        self.changed(group)
        self._enqueue(group, 0)

    # From the rest of the cluster

    def on_node_added(self) -> None:
        """What was infeasible may not be any more."""
        infeasible, self._infeasible = self._infeasible, {}
        for group in infeasible.values():
            group.delay_ns = 0
            self._enqueue(group, self._gcs.sim.now_ns)
        self._schedule_pending()

    def on_node_dead(self, node_id: NodeID) -> None:
        """Groups that had bundles there need others; those being placed will find out."""
        self._gcs.bundle_scheduler.on_node_dead(node_id)
        for group in list(self._table.values()):
            if node_id not in group.nodes:
                continue
            group.nodes = [-1 if n == node_id else n for n in group.nodes]
            if group.state == "CREATED":
                self._reschedule(group)
        self._schedule_pending()

    def on_job_finished(self, job_id: JobID) -> None:
        """Its groups go, unless an actor that made them lives on."""
        for group_id, group in list(self._table.items()):
            if group.spec.job_id == job_id:
                group.creator_job_dead = True
                if group.lifetime_done:
                    self.remove(group_id)

    def on_actor_dead(self, actor_id: ActorID) -> None:
        """Groups it made go, if its job has ended too or it was detached."""
        for group_id, group in list(self._table.items()):
            if group.spec.creator_actor == actor_id:
                group.creator_actor_dead = True
                if group.lifetime_done:
                    self.remove(group_id)

    def recover(self) -> None:
        """After a restart of the GCS: queue again what was being placed."""
        self._gcs.bundle_scheduler.recover([*self._table.values(), *self._removed.values()])
        for group in list(self._table.values()):
            group.queued = 0
            if group.state in ("PENDING", "RESCHEDULING"):
                group.delay_ns = 0
                self._enqueue(group, self._gcs.sim.now_ns)
        self._schedule_pending()

    def changed(self, group: GcsPlacementGroup) -> None:
        """Note it."""
        log = self._gcs.env.log
        if log.enabled:
            log.note(
                "placement_group", group.spec.group, group.state, self._gcs.sim.now_ns,
                detail=group.row(),
            )  # fmt: skip

    def _answer(self, group_id: PlacementGroupID, *, ready: bool) -> None:
        for reply in self._waiters.pop(group_id, ()):
            reply(ready)
