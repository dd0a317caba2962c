"""One deployment as the controller sees it: its replicas, and which of them to start and stop.

Real counterpart: ``DeploymentState`` of ``_private/deployment_state.py`` and the choice of
``_private/deployment_scheduler.py`` (ray 2.60): rolling updates stop at most a fifth of the target
at a time; replicas on draining nodes serve on until others run; of too many, those that do not run
go first, then those on nodes with the fewest replicas, the newest first.

Not modelled: reconfiguration in place, gangs, packing and compaction, recovery of a controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from raysim.raycore.ids import NodeID, PlacementGroupID
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.serve.autoscaling import DeploymentAutoscaling
from raysim.raylibs.serve.config import DeploymentConfig
from raysim.raylibs.serve.defaults import ServeDefaults
from raysim.raylibs.serve.replica import Replica

ReplicaState = Literal["STARTING", "RUNNING", "PENDING_MIGRATION", "STOPPING"]
DeploymentStatus = Literal["UPDATING", "HEALTHY", "UNHEALTHY", "DEPLOY_FAILED"]
_COUNTED: tuple[ReplicaState, ...] = ("STARTING", "RUNNING")
_SERVING: tuple[ReplicaState, ...] = ("RUNNING", "PENDING_MIGRATION")


@dataclass(slots=True, eq=False, kw_only=True)
class ReplicaRecord:
    """One replica, from the decision to start it to its end."""

    replica_id: str
    config: DeploymentConfig
    asked_ns: int
    state: ReplicaState = "STARTING"
    handle: ActorHandle | None = None
    group: PlacementGroupID | None = None
    replica: Replica | None = None
    """Its data path, once its process is there."""
    node_id: NodeID = -1
    started_ns: int = -1
    """When its constructor had returned."""
    failed: str = ""
    """Why it did not start."""
    died_ns: int = -1
    unhealthy: bool = False
    """A health check has found it dead."""
    stopped: bool = False


@dataclass(slots=True)
class Plan:
    """What one step of the controller does to a deployment."""

    start: int = 0
    stop: list[tuple[ReplicaRecord, bool]] = field(default_factory=list)
    """(Replica, whether gracefully)."""


class DeploymentState:
    """Target and replicas of one deployment."""

    def __init__(self, config: DeploymentConfig, defaults: ServeDefaults) -> None:
        self.config = config
        self.target = config.initial_replicas
        self.replicas: list[ReplicaRecord] = []
        """Oldest first."""
        self.failures = 0
        self.why_failed = ""
        self.has_started = False
        self.autoscaling: DeploymentAutoscaling | None = None
        if config.autoscaling is not None:
            self.autoscaling = DeploymentAutoscaling(config.autoscaling, defaults=defaults)
        self._defaults = defaults
        self._numbered = 0

    # ---- what there is

    def of(self, *states: ReplicaState) -> list[ReplicaRecord]:
        """Replicas in these states."""
        return [r for r in self.replicas if r.state in states]

    @property
    def serving(self) -> list[Replica]:
        """Those that routers should know."""
        return [r.replica for r in self.of(*_SERVING) if r.replica is not None]

    @property
    def failed(self) -> bool:
        """No replica of this version has ever started, and too many constructors have raised."""
        d, config = self._defaults, self.config
        most = min(config.max_constructor_retry_count, self.target * d.max_per_replica_retry_count)
        return not self.has_started and self.target > 0 and self.failures >= most

    @property
    def status(self) -> DeploymentStatus:
        """As ``serve status`` says it."""
        if self.failed:
            return "DEPLOY_FAILED"
        now = [r for r in self.of("RUNNING") if r.config.version == self.config.version]
        if len(now) == self.target == len(self.replicas):
            return "HEALTHY"
        return "UPDATING" if not self.has_started or now else "UNHEALTHY"

    def new_record(self, now_ns: int) -> ReplicaRecord:
        """One more."""
        record = ReplicaRecord(
            replica_id=f"{self.config.name}#{self._numbered}", config=self.config, asked_ns=now_ns
        )
        self._numbered += 1
        self.replicas.append(record)
        return record

    def redeploy(self, config: DeploymentConfig) -> None:
        """A new version or other options; what autoscaling has decided stands."""
        if config.version != self.config.version:
            self.failures, self.has_started, self.why_failed = 0, False, ""
        if config.autoscaling is None:
            self.target = config.num_replicas
            self.autoscaling = None
        elif self.autoscaling is None:
            self.autoscaling = DeploymentAutoscaling(config.autoscaling, defaults=self._defaults)
        else:
            self.autoscaling.config = config.autoscaling
        self.config = config

    def delete(self) -> None:
        """No replica is wanted any more."""
        self.target, self.autoscaling = 0, None

    # ---- one step

    def check(self, draining: Mapping[NodeID, int]) -> None:
        """Move replicas on that have started or stopped, or whose node drains."""
        self.replicas = [r for r in self.replicas if not r.stopped]
        for record in self.of("STARTING"):
            if record.started_ns >= 0:
                record.state = "RUNNING"
                if record.config.version == self.config.version:
                    self.has_started = True
        for record in self.of(*_SERVING):
            record.state = "PENDING_MIGRATION" if record.node_id in draining else "RUNNING"

    def plan(self, draining: Mapping[NodeID, int], busy_nodes: Mapping[NodeID, int], head: NodeID
             ) -> Plan:  # fmt: skip
        """What to start and stop now.

        Parameters
        ----------
        draining
            Nodes about to go.
        busy_nodes
            Replicas of all deployments, by node.
        head
            The node that nobody gives back.
        """
        plan = Plan()
        for record in self.of("STARTING"):
            if record.failed:
                self.failures += 1
                self.why_failed = record.failed
                self._stop(plan, record, graceful=False)
            elif record.node_id in draining:
                self._stop(plan, record, graceful=False)
        for record in self.of(*_SERVING):
            if record.unhealthy:
                self._stop(plan, record, graceful=False)
        self._update(plan)
        counted = self.of(*_COUNTED)
        missing = self.target - len(counted)
        if missing > 0 and not self.failed:
            plan.start = missing
        elif missing < 0:
            for record in self._least_wanted(counted, busy_nodes, head)[:-missing]:
                self._stop(plan, record, graceful=True)
        migrating = self.of("PENDING_MIGRATION")
        surplus = len(self.of("RUNNING")) + len(migrating) - self.target
        for record in migrating[: max(0, surplus)]:
            self._stop(plan, record, graceful=True)
        return plan

    def _update(self, plan: Plan) -> None:
        """``_check_and_stop_outdated_version_replicas``."""
        if not self.target or self.failed:
            return
        version = self.config.version
        old = [r for r in self.of("STARTING", "RUNNING") if r.config.version != version]
        leaving = [r for r in self.of("STOPPING") if r.config.version != version]
        if not old or self.target < len(old) + len(leaving):
            return
        new = [r for r in self.of("RUNNING") if r.config.version == version]
        rollout = max(int(self.config.rolling_update_frac * self.target), 1)
        pending = self.target - len(new) - len(old)
        for record in old[: max(rollout - pending, 0)]:
            self._stop(plan, record, graceful=True)

    @staticmethod
    def _stop(plan: Plan, record: ReplicaRecord, *, graceful: bool) -> None:
        record.state = "STOPPING"
        plan.stop.append((record, graceful))

    @staticmethod
    def _least_wanted(
        counted: list[ReplicaRecord], busy_nodes: Mapping[NodeID, int], head: NodeID
    ) -> list[ReplicaRecord]:
        pending = [r for r in counted if r.state == "STARTING"]
        running = [r for r in reversed(counted) if r.state == "RUNNING"]
        running.sort(key=lambda r: (r.node_id == head, busy_nodes.get(r.node_id, 0), r.node_id))
        return pending + running
