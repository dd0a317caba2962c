"""A GCS with scripted raylets, workers and listeners around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from raysim.kernel.component import Component, NodeDied, Reply
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.config import RayConfig
from raysim.raycore.gcs.server import Gcs
from raysim.raycore.ids import Ids, NodeID, WorkerAddress
from raysim.raycore.protocol import (
    GCS,
    Bundle,
    CancelResourceReserve,
    CancelWorkerLease,
    CommitBundleResources,
    CreatePlacementGroup,
    DrainRaylet,
    GetResourceLoad,
    KillActor,
    KillLocalActor,
    LeaseGranted,
    NodeAdded,
    NodeRemoved,
    PrepareBundleResources,
    PushTask,
    PushTaskReply,
    ReachabilityChanged,
    RegisterNode,
    ReleaseUnusedActorWorkers,
    ReportResources,
    RequestWorkerLease,
    ResourceDemand,
    ReturnWorkerLease,
    raylet,
)
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import ResourceSet
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import ActorOptions, RemoteFunction, TaskOptions, TaskSpec

FREE = RayCosts(
    gcs_message_ns=0, gcs_register_actor_ns=0, gcs_create_actor_ns=0, gcs_placement_group_ns=0,
    gcs_prepare_commit_ns=0, gcs_kv_ns=0,
)  # fmt: skip
"""Nothing takes any time, so that timelines are round."""


class Peer(Component):
    """Any process: keeps what it is sent and what it is answered."""

    def __init__(self, sim: Simulation, address: str) -> None:
        super().__init__(sim, address)
        self.got: list[tuple[float, Any]] = []
        self.answers: list[tuple[float, Any]] = []

    def keep(self, message: Any) -> None:
        self.got.append((self.sim.now_ns / 1e9, message))

    def ask(self, message: Any, to: str = GCS) -> None:
        self.call(to, message, self._answer)

    def _answer(self, answer: Any) -> None:
        self.answers.append((self.sim.now_ns / 1e9, answer))

    @property
    def last(self) -> Any:
        return self.answers[-1][1]

    def of(self, kind: type) -> list[tuple[float, Any]]:
        return [(t, m) for t, m in self.got if isinstance(m, kind)]

    def on_node_added(self, m: Any, reply: Reply) -> None:
        self.keep(m)

    on_node_removed = on_worker_failed = on_actor_state_changed = on_job_finished = on_node_added
    on_kill_actor = on_node_added


class ScriptedWorker(Peer):
    """A worker: creates actors at once, or as told."""

    on_push: Callable[[PushTask, Reply], object] | None = None

    def on_push_task(self, m: PushTask, reply: Reply) -> None:
        self.keep(m)
        if self.on_push is None:
            reply(PushTaskReply(()))
        else:
            self.on_push(m, reply)


class ScriptedRaylet(Peer):
    """A raylet that grants whatever is asked of it, or does as told; it holds bundles."""

    def __init__(self, case: GcsCase, node_id: NodeID) -> None:
        super().__init__(case.sim, raylet(node_id))
        self.case = case
        self.node_id = node_id
        self.on_lease: Callable[[RequestWorkerLease, Reply], object] | None = None
        self.on_prepare: Callable[[PrepareBundleResources, Reply], object] | None = None
        self.drain_answer = (True, "")
        self.load: tuple[ResourceDemand, ...] = ()
        self.bundles: dict[tuple[int, int], str] = {}

    def started(self) -> None:
        self.bundles = {}

    def grant(self, m: RequestWorkerLease, reply: Reply) -> ScriptedWorker:
        worker = self.case.worker(self.node_id)
        reply(LeaseGranted(m.lease_id, self.case.address_of(worker), {}))
        return worker

    def on_request_worker_lease(self, m: RequestWorkerLease, reply: Reply) -> None:
        self.keep(m)
        if self.on_lease is None:
            self.grant(m, reply)
        else:
            self.on_lease(m, reply)

    def on_prepare_bundle_resources(self, m: PrepareBundleResources, reply: Reply) -> None:
        self.keep(m)
        if self.on_prepare is not None:
            self.on_prepare(m, reply)
            return
        for b in m.bundles:
            self.bundles[b.group, b.bundle_index] = "prepared"
        reply(True)

    def on_commit_bundle_resources(self, m: CommitBundleResources, reply: Reply) -> None:
        self.keep(m)
        for b in m.bundles:
            assert self.bundles[b.group, b.bundle_index] == "prepared"
            self.bundles[b.group, b.bundle_index] = "committed"
        reply(True)

    def on_cancel_resource_reserve(self, m: CancelResourceReserve, reply: Reply) -> None:
        self.keep(m)
        for b in m.bundles:
            self.bundles.pop((b.group, b.bundle_index), None)
        reply()

    def on_return_worker_lease(self, m: ReturnWorkerLease, reply: Reply) -> None:
        self.keep(m)

    def on_cancel_worker_lease(self, m: CancelWorkerLease, reply: Reply) -> None:
        self.keep(m)
        reply(True)

    def on_release_unused_actor_workers(self, m: ReleaseUnusedActorWorkers, reply: Reply) -> None:
        self.keep(m)
        reply()

    def on_kill_local_actor(self, m: KillLocalActor, reply: Reply) -> None:
        self.keep(m)
        self.send(f"node-{self.node_id}/worker-{m.worker_id}", m.order)

    def on_drain_raylet(self, m: DrainRaylet, reply: Reply) -> None:
        self.keep(m)
        reply(self.drain_answer)

    def on_get_resource_load(self, m: GetResourceLoad, reply: Reply) -> None:
        self.keep(m)
        reply(self.load)


class GcsCase:
    """The whole scene: ``case = GcsCase(nodes=3)``, ``case.run(2.5)``."""

    def __init__(
        self,
        nodes: int = 1,
        *,
        cpus: float = 4,
        config: RayConfig | None = None,
        costs: RayCosts = FREE,
        check: bool = True,
    ) -> None:
        self.sim = Simulation(check=check)
        self.env = Surroundings(
            sim=self.sim, config=config or RayConfig(), costs=costs, ids=Ids(),
            view=ResourceView(), log=StateLog(), network=cast(Any, None),
            topology=cast(Any, None), nodes=[],
            launcher=cast(Any, None),
        )  # fmt: skip
        self.gcs = self.sim.add(Gcs(self.env))
        self.raylets: dict[NodeID, ScriptedRaylet] = {}
        self.me = self.sim.add(Peer(self.sim, "node-0/driver-900"))
        """The driver, and whoever asks."""
        for node_id in range(nodes):
            self.add_node(node_id, cpus=cpus)
        self.run(0)

    def run(self, until_s: float) -> None:
        """Up to and including this time."""
        self.sim.run(int(until_s * 1e9) + 1)

    def add_node(self, node_id: NodeID, *, cpus: float = 4, labels: dict[str, str] | None = None,
                 node_type: str = "", **more: float) -> ScriptedRaylet:  # fmt: skip
        its = self.raylets.get(node_id)
        if its is None:
            its = self.raylets[node_id] = self.sim.add(ScriptedRaylet(self, node_id))
        elif its.state != "up":
            its.start()
        resources = ResourceSet.of({"CPU": cpus, **more}).units
        its.ask(
            RegisterNode(
                node_id, its.address, resources, labels or {}, node_id == 0, node_type, its.epoch
            )
        )
        return its

    def worker(self, node_id: NodeID) -> ScriptedWorker:
        worker_id = self.env.ids.worker()
        return self.sim.add(ScriptedWorker(self.sim, f"node-{node_id}/worker-{worker_id}"))

    def address_of(self, peer: Peer) -> WorkerAddress:
        node, room = peer.address.split("/")
        return WorkerAddress(int(room.split("-")[1]), peer.address, int(node.split("-")[1]))

    def listener(self, name: str = "node-0/worker-901") -> Peer:
        return self.sim.add(Peer(self.sim, name))

    def reach(self, node_id: NodeID, how: Any) -> None:
        self.me.send(GCS, ReachabilityChanged(node_id, how))

    def power_off(self, node_id: NodeID) -> None:
        """Silently: only health checks will tell."""
        its = self.raylets[node_id]
        its.crash(NodeDied(address=its.address, node=f"node-{node_id}"), silent=True)
        self.reach(node_id, "silent")

    def kill_raylet(self, node_id: NodeID) -> None:
        self.raylets[node_id].crash(reason="killed")
        self.reach(node_id, "refuses")

    def report(self, node_id: NodeID, *, cpus: float, total: float = 4, waiting: bool = False,
               idle_since_ns: int = -1) -> None:  # fmt: skip
        self.raylets[node_id].send(GCS, ReportResources(
            node_id, 0, ResourceSet.of({"CPU": cpus}).units, ResourceSet.of({"CPU": total}).units,
            False, False, idle_since_ns, waiting,
        ))  # fmt: skip

    def group(self, group: int, bundles: list[dict[str, float]], strategy: str = "PACK",
              **more: Any) -> None:  # fmt: skip
        """Ask for a placement group."""
        parts = tuple(Bundle(group, i, ResourceSet.of(b)) for i, b in enumerate(bundles))
        given = {"name": "", "ray_namespace": "ns", "job_id": 1, "creator_actor": 0,
                 "detached": False, "creator": self.address_of(self.me), **more}  # fmt: skip
        self.me.ask(CreatePlacementGroup(group=group, bundles=parts, strategy=strategy, **given))

    def state_of(self, group: int) -> str:
        tables = self.gcs.tables
        return (tables.groups.get(group) or tables.removed_groups[group]).state

    def actor_spec(self, actor_id: int, *, owner: WorkerAddress | None = None,
                   resources: dict[str, float] | None = None, task: Any = None,
                   job_id: int = 1, **options: Any) -> TaskSpec:  # fmt: skip
        function = RemoteFunction(name="A", body=lambda _: None)
        return TaskSpec(
            self.env.ids.task(),
            TaskOptions(
                function=function, resources=ResourceSet.of(resources or {}),
                placement_resources=None if resources else ResourceSet.of({"CPU": 1}),
                actor=ActorOptions(**options), **(task or {}),
            ),
            (), owner or self.address_of(self.me), kind="ACTOR_CREATION_TASK", job_id=job_id,
            actor_id=actor_id,
        )  # fmt: skip

    def states(self, kind: str, number: int) -> list[tuple[float, str]]:
        """The log of one thing."""
        return [
            (c.t_ns / 1e9, c.state)
            for c in self.env.log.rows
            if c.kind == kind and c.number == number
        ]


__all__ = ["FREE", "GcsCase", "KillActor", "NodeAdded", "NodeRemoved", "Peer", "ScriptedRaylet"]
