"""The autoscaler's loop: compare what should be with what is, every five seconds.

Real counterpart: ``python/ray/autoscaler/v2/autoscaler.py``, ``instance_manager/reconciler.py`` and
the subscribers that launch, stop and terminate. Each round asks the GCS for the state of the
cluster, brings the table of instances up to date with it and with the cloud, lets the scheduler
decide, and then takes for each instance one step on its way::

    QUEUED -> REQUESTED -> ALLOCATED -> (RAY_INSTALLING) -> RAY_RUNNING
           -> RAY_STOP_REQUESTED -> RAY_STOPPING -> RAY_STOPPED -> TERMINATING -> TERMINATED

How many of the queued are requested in a round is ``launch_limits``. A machine is ALLOCATED when
the cloud lists it, booted or not; a pod stays so until its raylet registers. An idle node is
drained; its raylet may refuse because work came meanwhile.

With ``version: v1`` what is wanted beyond the limit is not queued but worked out anew each round,
and only the first thousand requests are looked at; all else is version 2's.

A node that the cloud has taken away counts until the GCS declares it dead, as in Ray, where the
instance is given up and found again in the GCS's list within the same round.

Since the loop never ends, a run with an autoscaler has to be told when to stop.

Not modelled: terminations that fail, and ending nodes beyond a maximum is a drain as well (Ray's
legacy ``DrainNode`` stops them at once).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from raysim.kernel.component import Component
from raysim.raycore.autoscaler.bin_packing import Availability, Node
from raysim.raycore.autoscaler.config import V1_DEMAND_SIZE, AutoscalerConfig
from raysim.raycore.autoscaler.launch_limits import v1_launches, v2_launches
from raysim.raycore.autoscaler.scheduler import Decision, anti_affinity_label, schedule
from raysim.raycore.gcs_client import GcsClient
from raysim.raycore.ids import NodeID
from raysim.raycore.launcher import NodeProvider
from raysim.raycore.protocol import (
    ClusterResourceState,
    DrainNode,
    GetClusterResourceState,
    NodeTableData,
)
from raysim.raycore.resources import ResourceSet
from raysim.raycore.room import Surroundings
from raysim.units import NS_PER_S, to_ns

Status = Literal[
    "QUEUED", "REQUESTED", "ALLOCATED", "RAY_INSTALLING", "RAY_RUNNING", "RAY_STOP_REQUESTED",
    "RAY_STOPPING", "RAY_STOPPED", "TERMINATING", "TERMINATED", "ALLOCATION_FAILED",
    "ALLOCATION_TIMEOUT", "RAY_INSTALL_FAILED",
]  # fmt: skip

RECOVERY_S = 600
"""``RAY_AUTOSCALER_AVAILABILITY_RECOVERY_S``: how long a type that could not be had is avoided."""

_RECOVERY_FLOOR_S = min(10.0, 0.1 * RECOVERY_S)
_MAY_STILL_RUN = frozenset(
    {"QUEUED", "REQUESTED", "ALLOCATED", "RAY_INSTALLING", "RAY_RUNNING", "RAY_STOP_REQUESTED"}
)
_NEVER_NS = 1 << 62
_NOT_YET_RUNNING = frozenset({"ALLOCATED", "RAY_INSTALLING"})
_NEEDS_RAY = frozenset({"RAY_RUNNING", "RAY_STOP_REQUESTED", "RAY_STOPPING"})


class Instance:
    """A machine, from the wish for it to its end."""

    __slots__ = (
        "is_head", "launch_config", "node_id", "node_type", "number", "requests", "since_ns",
        "status",
    )  # fmt: skip

    def __init__(
        self, number: int, node_type: str, status: Status, now_ns: int, launch_config: str
    ) -> None:
        self.number = number
        self.node_type = node_type
        self.launch_config = launch_config
        self.status: Status = status
        self.since_ns = now_ns
        self.node_id: NodeID = -1
        """Known once the machine is there."""
        self.is_head = False
        self.requests = 0
        """How often it was requested."""

    def become(self, status: Status, now_ns: int) -> None:
        """The next step."""
        self.status = status
        self.since_ns = now_ns


class Autoscaler(Component):
    """The monitor process on the head node.

    Parameters
    ----------
    env
        The cluster's surroundings.
    config
        Node types and limits.
    provider
        The cloud.
    """

    def __init__(
        self, env: Surroundings, config: AutoscalerConfig, *, provider: NodeProvider
    ) -> None:
        super().__init__(env.sim, f"node-{env.head}/autoscaler")
        self.env = env
        self.config = config
        self.provider = provider
        self.decision = Decision()
        """The last one."""
        self._settled: tuple[object, ...] | None = None
        """What it was made of, if it was to do nothing."""
        self._state: ClusterResourceState | None = None
        """What the GCS said in the last round that was played."""
        self._idle_due_ns = 0
        """When the next idle node has been so for too long."""

    def started(self) -> None:
        """Begin with no instance: those that run are found in the GCS's state."""
        self.instances: dict[int, Instance] = {}
        """By number, in order of creation; without those that have ended."""
        self._last_number = 0
        self._arrived: list[tuple[int, str, NodeID | None]] = []
        """What the cloud has answered since the last round."""
        self._stop_failed: list[int] = []
        self._unavailable_ns: dict[str, int] = {}
        """When a type last could not be had in time."""
        self._gcs = GcsClient(self, self.env, self._gave_up)
        self._update(None)

    def reconfigure(self, config: AutoscalerConfig) -> None:
        """The cluster file has been changed; seen in the next round."""
        self._settled = None
        self.config = config

    def _gave_up(self) -> None:
        self.crash(reason="GCS not reachable")

    def _update(self, _: object) -> None:
        self._gcs.call(GetClusterResourceState(), self._reconcile)

    def _reconcile(self, state: ClusterResourceState) -> None:
        if not self._is_as_before(state):
            self._play(state)
        self.after(to_ns(self.env.config.autoscaler_update_interval_s), self._update)

    def _is_as_before(self, state: ClusterResourceState) -> bool:
        """Whether a round could only find what the last one found, which was nothing to do."""
        return (
            state is self._state
            and self._settled is not None
            and self.sim.now_ns <= self._idle_due_ns
            and not self._arrived
            and not self._stop_failed
        )

    def _play(self, state: ClusterResourceState) -> None:
        self._sync_with_cloud()
        self._sync_with_ray(state)
        self._handle_stuck()
        self._scale(state)
        self._terminate()
        self._launch()
        if not self.config.kuberay:
            for instance in self._in("ALLOCATED"):
                if not instance.is_head and self.provider.runs(instance.node_id):
                    instance.become("RAY_INSTALLING", self.sim.now_ns)
        still = all(i.status == "RAY_RUNNING" for i in self.instances.values())
        self._state = state if still else None
        limit_ns = to_ns(self.config.idle_s(self.env.config))
        due = [since + limit_ns for since in state.idle_since_ns if since >= 0]
        self._idle_due_ns = min((ns for ns in due if ns >= self.sim.now_ns), default=_NEVER_NS)

    # What is

    def _sync_with_cloud(self) -> None:
        """Machines that have come, or will not; those that are gone."""
        now_ns = self.sim.now_ns
        for instance in self._in("TERMINATING"):
            instance.become("TERMINATED", now_ns)
            del self.instances[instance.number]
        arrived, self._arrived = self._arrived, []
        for number, node_type, node_id in arrived:
            known = self.instances.get(number)
            waiting = known is not None and known.status == "REQUESTED"
            if node_id is None:
                if known is not None and waiting:
                    known.become("ALLOCATION_FAILED", now_ns)
                    del self.instances[number]
                continue
            if known is None or not waiting:  # given up before it came
                known = self._add(node_type, "ALLOCATED")
            known.become("ALLOCATED", now_ns)
            known.node_id = node_id
        listed = {i.node_id: None for i in self.instances.values()}
        for node_id, node_type in self.provider.machines().items():
            if node_id not in listed:  # of the machines the cluster began with
                self._add(node_type, "ALLOCATED").node_id = node_id
        failed, self._stop_failed = self._stop_failed, []
        for number in failed:
            known = self.instances.get(number)
            if known is not None and known.status == "RAY_STOP_REQUESTED":
                known.become("RAY_RUNNING", now_ns)

    def _sync_with_ray(self, state: ClusterResourceState) -> None:
        """Raylets that have come, drain, or are gone."""
        now_ns = self.sim.now_ns
        by_node = {i.node_id: i for i in self.instances.values() if i.node_id >= 0}
        there: dict[NodeID, None] = {}
        for row in state.nodes:
            there[row.node_id] = None
            known = by_node.get(row.node_id)
            if known is None:  # lost to the cloud, but not to Ray
                if not row.node_type and not row.is_head:
                    continue
                known = self._add(row.node_type, "ALLOCATED")
                known.node_id = row.node_id
            known.is_head = row.is_head
            if row.state == "DRAINING":
                if known.status in _NOT_YET_RUNNING or known.status in (
                    "RAY_RUNNING", "RAY_STOP_REQUESTED",
                ):  # fmt: skip
                    known.become("RAY_STOPPING", now_ns)
            elif known.status in _NOT_YET_RUNNING:
                known.become("RAY_RUNNING", now_ns)
                self._unavailable_ns.pop(known.node_type, None)
        for instance in list(self.instances.values()):
            gone = instance.node_id not in there
            if gone and instance.status in _NEEDS_RAY and not instance.is_head:
                instance.become("RAY_STOPPED", now_ns)

    def _handle_stuck(self) -> None:
        """Steps that take too long are given up or tried again."""
        now_ns, limits = self.sim.now_ns, self.config.timeouts

        def stuck(status: Status, limit_s: float) -> list[Instance]:
            return [i for i in self._in(status) if now_ns - i.since_ns > limit_s * NS_PER_S]

        for instance in stuck("REQUESTED", limits.requested_s):
            if instance.requests > limits.allocation_retries:
                instance.become("ALLOCATION_FAILED", now_ns)
                del self.instances[instance.number]
            else:
                instance.become("QUEUED", now_ns)
        for instance in stuck("ALLOCATED", limits.allocated_s):
            instance.become("ALLOCATION_TIMEOUT", now_ns)
            self._unavailable_ns[instance.node_type] = now_ns
        for instance in stuck("RAY_INSTALLING", limits.ray_installing_s):
            instance.become("RAY_INSTALL_FAILED", now_ns)
        for instance in stuck("RAY_STOP_REQUESTED", limits.ray_stop_requested_s):
            instance.become("RAY_RUNNING", now_ns)

    # What should be

    def _scale(self, state: ClusterResourceState) -> None:
        head = next((i for i in self.instances.values() if i.is_head), None)
        if head is None or head.status != "RAY_RUNNING":
            return
        now_ns = self.sim.now_ns
        if self.config.version == "v1":
            state = _clipped(state)
        nodes = self._nodes(state)
        idle_s = self.config.idle_s(self.env.config)
        found = None if self._unavailable_ns else _made_of(state, nodes, idle_s)
        if found is not None and found == self._settled:
            return
        decision = self.decision = schedule(
            self.config,
            state,
            nodes,
            idle_timeout_s=idle_s,
            availability=self._availability(),
            head_type=head.node_type,
        )
        self._settled = None if decision.launch or decision.terminate else found
        for node in decision.terminate:
            instance = self.instances[node.instance]
            if instance.status == "QUEUED":
                instance.become("TERMINATED", now_ns)
                del self.instances[instance.number]
            elif instance.status in _NOT_YET_RUNNING:
                self._end_machine(instance)
            elif instance.status == "RAY_RUNNING":
                self._drain(instance, node)
        launches = decision.launch
        if self.config.version == "v1":
            launches = v1_launches(
                decision.launch, self._count("RAY_RUNNING"),
                self._count("QUEUED", "REQUESTED", "ALLOCATED", "RAY_INSTALLING"),
                decision.urgent, speed=self.config.speed(self.env.config),
            )  # fmt: skip
        for node_type, count in launches.items():
            for _ in range(count):
                self._add(node_type, "QUEUED")

    def _nodes(self, state: ClusterResourceState) -> list[Node]:
        """The scheduler's view: what runs as it is, what is coming as it will be."""
        rows = {row.node_id: row for row in state.nodes}
        idle_since = dict(zip(rows, state.idle_since_ns, strict=True))
        types = {t.name: t for t in self.config.node_types}
        nodes: list[Node] = []
        for instance in self.instances.values():
            if instance.status not in _MAY_STILL_RUN:
                continue
            its = types.get(instance.node_type)
            row = rows.get(instance.node_id)
            if instance.status == "RAY_RUNNING":
                if row is not None:
                    priority = its.priority if its is not None else 0
                    nodes.append(self._running(instance, row, idle_since[row.node_id], priority))
            elif its is not None:
                units = ResourceSet.of(its.resources).units
                node = Node.new(
                    its.name, units, units, its.labels, instance=instance.number,
                    is_head=instance.is_head, priority=its.priority,
                    launch_config=instance.launch_config,
                )  # fmt: skip
                nodes.append(node)
            elif not self.config.disable_launch_config_check:  # its type is gone
                nodes.append(
                    Node.new(instance.node_type, {}, {}, {}, status="TO_TERMINATE",
                             cause="OUTDATED", instance=instance.number)
                )  # fmt: skip
        self._mark_spread(state, nodes)
        return nodes

    def _running(
        self, instance: Instance, row: NodeTableData, idle_since_ns: int, priority: int
    ) -> Node:
        return Node.new(
            instance.node_type, row.resources, row.available, row.labels,
            instance=instance.number, node_id=row.node_id, is_head=instance.is_head,
            idle_ns=self.sim.now_ns - idle_since_ns if idle_since_ns >= 0 else 0,
            priority=priority, launch_config=instance.launch_config,
        )  # fmt: skip

    def _mark_spread(self, state: ClusterResourceState, nodes: list[Node]) -> None:
        """Nodes that hold bundles of a STRICT_SPREAD group that lacks others."""
        by_id = {n.node_id: n for n in nodes if n.node_id >= 0}
        for gang in state.gangs:
            if gang.strategy == "STRICT_SPREAD":
                for node_id in gang.nodes:
                    if node_id in by_id:
                        by_id[node_id].labels[anti_affinity_label(gang)] = ""

    def _availability(self) -> Availability:
        """Types that could not be had are avoided, less and less as time goes by."""
        now_ns, failed = self.sim.now_ns, self._unavailable_ns
        latest_ns = max(failed.values(), default=0)
        recoverable: dict[str, float] = {}
        for node_type, at_ns in failed.items():
            ago_s = (now_ns - at_ns) / NS_PER_S
            recovered = min(1.0, ago_s / RECOVERY_S)
            recoverable[node_type] = recovered if ago_s >= _RECOVERY_FLOOR_S else 0.0
        relative = {t: 1 - at_ns / latest_ns for t, at_ns in failed.items()}
        return Availability(recoverable, relative)

    # Steps

    def _launch(self) -> None:
        """Request queued instances, as many as the speed and the limit allow."""
        queued: dict[str, list[Instance]] = {}
        for instance in self._in("QUEUED"):
            queued.setdefault(instance.node_type, []).append(instance)
        launches = {node_type: len(instances) for node_type, instances in queued.items()}
        if self.config.version == "v2":
            launches = v2_launches(
                launches, self._count("RAY_RUNNING"), requested=len(self._in("REQUESTED")),
                speed=self.config.speed(self.env.config),
                most_requested=self.env.config.autoscaler_max_concurrent_launches,
            )  # fmt: skip
        for node_type, instances in queued.items():
            for instance in sorted(instances, key=_queued_since)[: launches[node_type]]:
                instance.become("REQUESTED", self.sim.now_ns)
                instance.requests += 1
                self.provider.launch(
                    node_type,
                    _Launched(self, self.epoch, instance.number, node_type).answered,
                )

    def launched(self, number: int, node_type: str, node_id: NodeID | None) -> None:
        """The cloud has answered; seen in the next round."""
        self._arrived.append((number, node_type, node_id))

    def _drain(self, instance: Instance, node: Node) -> None:
        instance.become("RAY_STOP_REQUESTED", self.sim.now_ns)
        if node.cause == "IDLE":
            seconds = node.idle_ns / NS_PER_S
            message = f"Termination of node that's idle for {seconds} seconds."
            order = DrainNode(node.node_id, "IDLE_TERMINATION", 0, message)
        else:
            order = DrainNode(node.node_id, "PREEMPTION", 0, f"Termination due to {node.cause}.")
        self._gcs.call(order, _Drained(self, instance.number).answered)

    def drained(self, number: int, answer: Any) -> None:
        """Whether the raylet will stop; seen in the next round."""
        accepted, _ = answer
        if not accepted:
            self._stop_failed.append(number)

    def _terminate(self) -> None:
        """Give back machines on which Ray has stopped or never started."""
        for status in ("RAY_STOPPED", "ALLOCATION_TIMEOUT", "RAY_INSTALL_FAILED"):
            for instance in self._in(status):
                self._end_machine(instance)

    def _end_machine(self, instance: Instance) -> None:
        instance.become("TERMINATING", self.sim.now_ns)
        self.provider.terminate(instance.node_id)

    def _in(self, status: str) -> list[Instance]:
        return [i for i in self.instances.values() if i.status == status]

    def _count(self, *statuses: Status) -> Mapping[str, int]:
        """Instances by type."""
        counts: dict[str, int] = {}
        for instance in self.instances.values():
            if instance.status in statuses:
                counts[instance.node_type] = counts.get(instance.node_type, 0) + 1
        return counts

    def _add(self, node_type: str, status: Status) -> Instance:
        self._last_number += 1
        current = {t.name: t.launch_config for t in self.config.node_types}.get(node_type, "")
        instance = Instance(self._last_number, node_type, status, self.sim.now_ns, current)
        self.instances[instance.number] = instance
        return instance


def _queued_since(instance: Instance) -> int:
    return instance.since_ns


def _clipped(state: ClusterResourceState) -> ClusterResourceState:
    """The first of the demand only."""
    left, kept = V1_DEMAND_SIZE, []
    for demand in state.demands:
        kept.append(demand._replace(requests=min(demand.requests, left)))
        left -= kept[-1].requests
    return state._replace(demands=tuple(d for d in kept if d.requests))


class _Launched:
    """The cloud's answer to one request; nobody's, if the autoscaler has died since."""

    __slots__ = ("_autoscaler", "_epoch", "_node_type", "_number")

    def __init__(self, autoscaler: Autoscaler, epoch: int, number: int, node_type: str) -> None:
        self._autoscaler, self._epoch = autoscaler, epoch
        self._number, self._node_type = number, node_type

    def answered(self, node_id: NodeID | None) -> None:
        """By the cloud."""
        if self._epoch == self._autoscaler.epoch:
            self._autoscaler.launched(self._number, self._node_type, node_id)


class _Drained:
    """The GCS's answer to one drain."""

    __slots__ = ("_autoscaler", "_number")

    def __init__(self, autoscaler: Autoscaler, number: int) -> None:
        self._autoscaler, self._number = autoscaler, number

    def answered(self, answer: Any) -> None:
        """By the GCS."""
        self._autoscaler.drained(self._number, answer)


def _made_of(state: ClusterResourceState, nodes: list[Node], idle_s: float) -> tuple[object, ...]:
    """All that a decision follows from; of idle times, who is idle longer and who too long."""
    limit_ns = idle_s * NS_PER_S
    rank = {ns: i for i, ns in enumerate(sorted({n.idle_ns for n in nodes}))}
    seen = [
        (n.node_type, n.instance, n.node_id, n.status, n.is_head, n.launch_config, n.priority,
         n.total, n.free, n.labels, rank[n.idle_ns], n.idle_ns > limit_ns)
        for n in nodes
    ]  # fmt: skip
    return state.demands, state.gangs, state.constraints, seen
