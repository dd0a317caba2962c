"""Stores and object managers on hardware, with scripted raylets, workers and a scripted GCS."""

from __future__ import annotations

from typing import Any

from raysim.hardware.network import FlowNetwork
from raysim.hardware.node import make_nodes
from raysim.hardware.topology import Topology
from raysim.kernel.component import Component
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import Ids, NodeID, ObjectID, WorkerAddress
from raysim.raycore.object_manager.io_worker import IOWorker
from raysim.raycore.object_manager.object_manager import ObjectManager
from raysim.raycore.plasma import PlasmaStore
from raysim.raycore.protocol import (
    GCS,
    AsyncGetObjects,
    CancelGetRequest,
    ClientDisconnected,
    ObjectLocations,
    PinObjectIDs,
    PlasmaCreate,
    PlasmaCreated,
    PlasmaGet,
    PlasmaSeal,
    PullStatus,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import Payload, Ref, TaskError
from tests.hardware_parts import bare_node, cluster

MB = 1_000_000
S = 1_000_000_000
MS = 1_000_000

FREE = {
    "plasma_request_ns": 0, "object_manager_message_ns": 0, "pin_ns": 0, "chunk_ns": 0,
    "copy_bytes_per_s": 1e15, "spill_bytes_per_s": 1e15,
    "spill_again_bytes_per_s": 1e15, "restore_bytes_per_s": 1e15, "restore_ns": 0, "transfer_ns": 0,
    "first_touch_bytes_per_s": 1e15,
}  # fmt: skip
"""Ray's own code takes no time: what is left is hardware."""


class Quiet(Component):
    """A raylet, or the GCS: keeps what it is told."""

    def started(self) -> None:
        self.statuses: list[tuple[int, PullStatus]] = []

    def on_pull_status(self, m, reply):
        self.statuses.append((self.sim.now_ns, m))

    def on_subscribe_all(self, m, reply):
        reply()


class Worker(Component):
    """Owner, maker and reader of objects, as a core worker is."""

    def __init__(self, case: ObjectCase, node_id: NodeID, worker_id: int) -> None:
        super().__init__(case.sim, f"node-{node_id}/worker-{worker_id}")
        self.case = case
        self.me = WorkerAddress(worker_id, self.address, node_id)
        self.sizes: dict[ObjectID, int] = {}
        self.nodes: dict[ObjectID, dict[NodeID, None]] = {}
        self.urls: dict[ObjectID, tuple[str, NodeID]] = {}
        self.removed: dict[ObjectID, None] = {}
        self.subscribers: dict[ObjectID, dict[str, None]] = {}
        self.requests = 0
        self.got: list[tuple[int, Any]] = []
        """(when, object ids or the error) of each get that ended."""
        self.made: list[tuple[int, ObjectID, Any]] = []
        self.reports: list[Any] = []

    # owner

    def owns(self, object_id: ObjectID, size: int) -> Ref:
        self.sizes[object_id] = size
        return Ref(object_id, self.me)

    def on_subscribe_object_locations(self, m, reply):
        subscribers = self.subscribers.setdefault(m.object_id, {})
        if m.unsubscribe:
            subscribers.pop(m.subscriber, None)
            return
        subscribers[m.subscriber] = None
        self.tell(m.object_id, m.subscriber)

    def on_update_object_location_batch(self, m, reply):
        for update in m.updates:
            self.reports.append((self.sim.now_ns, m.node_id, update))
            nodes = self.nodes.setdefault(update.object_id, {})
            if update.added:
                nodes[m.node_id] = None
            elif update.added is False:
                nodes.pop(m.node_id, None)
            if update.spilled_url:
                self.urls[update.object_id] = (update.spilled_url, m.node_id)
            self.publish(update.object_id)

    def publish(self, object_id: ObjectID) -> None:
        for subscriber in list(self.subscribers.get(object_id, ())):
            self.tell(object_id, subscriber)

    def tell(self, object_id: ObjectID, subscriber: str) -> None:
        url, node = self.urls.get(object_id, ("", -1))
        nodes = tuple(self.nodes.get(object_id, ()))
        news = ObjectLocations(
            object_id, self.sizes.get(object_id, 0), nodes, url, node,
            pending_creation=not nodes and not url and object_id in self.sizes,
            ref_removed=object_id in self.removed,
        )  # fmt: skip
        self.send(subscriber, news)

    # maker

    def put(
        self, object_id: ObjectID, size: int, *, owner: Worker | None = None, pin: bool = True,
        **create: Any,
    ) -> Ref:  # fmt: skip
        """Create, seal, pin; at this instant and after what blocks it."""
        owner = owner or self
        ref = owner.owns(object_id, size)

        def created(answer: Any) -> None:
            self.made.append((self.sim.now_ns, object_id, answer))
            if isinstance(answer, PlasmaCreated) and not answer.existed:
                self.call(store, PlasmaSeal(object_id, Payload(size, f"v{object_id}")), sealed)

        def sealed(answer: Any) -> None:
            if pin:
                manager = object_manager(self.me.node_id)
                self.call(manager, PinObjectIDs((object_id,), owner.me), self.pinned)

        store = plasma(self.me.node_id)
        self.call(store, PlasmaCreate(object_id, size, owner.me, self.address, **create), created)
        return ref

    def pinned(self, answer: Any) -> None:
        pass

    # reader

    def get(self, *refs: Ref, priority: str = "GET") -> tuple[str, int]:
        self.requests += 1
        request_id = (self.address, self.requests)
        ids = tuple(ref.object_id for ref in refs)

        def here(answer: Any) -> None:
            if answer is not None or priority != "GET":
                self.got.append((self.sim.now_ns, answer if answer is not None else ids))
            else:
                self.call(plasma(self.me.node_id), PlasmaGet(ids, self.address), read)

        def read(payloads: Any) -> None:
            assert [p.data for p in payloads] == [f"v{i}" for i in ids]
            self.got.append((self.sim.now_ns, ids))

        self.call(
            object_manager(self.me.node_id), AsyncGetObjects(request_id, refs, priority), here
        )
        return request_id

    def cancel(self, request_id: tuple[str, int]) -> None:
        self.send(object_manager(self.me.node_id), CancelGetRequest(request_id))


class ObjectCase:
    """``count`` nodes, each with a store, an object manager and one worker."""

    def __init__(
        self, count: int = 1, *, capacity: int = 1000 * MB, disk: int = 10**12,
        start_ns: int = 0, config: dict[str, Any] | None = None,
        costs: dict[str, Any] | None = None, seed: int = 0, check: bool = True,
        node: dict[str, Any] | None = None, host_of: tuple[int, ...] | None = None,
    ) -> None:  # fmt: skip
        self.sim = Simulation(seed=seed, check=check)
        topology = Topology.build(cluster(max(1, count), of=bare_node(**(node or {}))))
        self.network = FlowNetwork(self.sim, topology)
        self.start_ns = start_ns
        self.started: list[tuple[int, str]] = []
        self.io: dict[int, IOWorker] = {}
        self.log = StateLog()
        self.env = Surroundings(
            sim=self.sim, config=RayConfig(**(config or {})),
            costs=RayCosts(**(FREE | (costs or {}))),
            ids=Ids(), view=ResourceView(), log=self.log, network=self.network, topology=topology,
            nodes=make_nodes(self.sim, self.network, topology, host_of), launcher=self,
        )  # fmt: skip
        self.gcs = self.sim.add(Quiet(self.sim, GCS))
        self.stores, self.managers, self.raylets, self.workers = [], [], [], []
        for i in range(count):
            self.raylets.append(self.sim.add(Quiet(self.sim, raylet(i))))
            self.stores.append(self.sim.add(PlasmaStore(self.env, i, capacity_bytes=capacity)))
            self.managers.append(self.sim.add(ObjectManager(self.env, i, disk_capacity_bytes=disk)))
            self.workers.append(self.sim.add(Worker(self, i, self.env.ids.worker())))
        self.sim.run(until=1)

    def worker(self, node_id: NodeID) -> Worker:
        """One more process."""
        return self.sim.add(Worker(self, node_id, self.env.ids.worker()))

    def crash(self, worker: Worker | IOWorker) -> None:
        """A process dies; its node's rooms are told, as the raylet would."""
        worker.crash(reason="killed")
        for room in (plasma(worker.me.node_id), object_manager(worker.me.node_id)):
            self.gcs.send(room, ClientDisconnected(worker.address))

    def states(self, object_id: ObjectID) -> list[tuple[float, int, str]]:
        """(seconds, node, state) of an object's log."""
        return [
            (round(r.t_ns / S, 3), r.node_id, r.state)
            for r in self.log.rows if r.number == object_id
        ]  # fmt: skip

    # ProcessLauncher

    def start(self, spec: Any) -> int:
        worker_id = self.env.ids.worker()
        self.started.append((self.sim.now_ns, spec.worker_type))
        self.sim.call_later(self.start_ns, self._up, (spec, worker_id))
        return worker_id

    def _up(self, started: tuple[Any, int]) -> None:
        spec, worker_id = started
        if self.managers[spec.node_id].state == "up":
            self.io[worker_id] = self.sim.add(
                IOWorker(self.env, spec.node_id, worker_id, spec.worker_type, spec.startup_token)
            )

    def kill(self, worker_id: int, *, reason: str, intended: bool = False) -> None:
        raise NotImplementedError

    def memory_bytes(self, worker_id: int) -> int:
        raise NotImplementedError


def error_types(got: list[tuple[int, Any]]) -> list[str]:
    """Of gets that ended with an error."""
    return [what.error_type for _, what in got if isinstance(what, TaskError)]
