"""A raylet among scripted peers: the GCS, stores, owners and processes of its tests."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from raysim.kernel.component import Component, Reply, one_way
from raysim.kernel.simulation import Simulation
from raysim.kernel.transport import InstantTransport
from raysim.perf.ray_core import RayCosts
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import Ids, WorkerAddress
from raysim.raycore.launcher import ProcessSpec
from raysim.raycore.protocol import (
    GCS,
    CancelWorkerLease,
    LeaseGranted,
    LeaseSpec,
    LeaseSpillback,
    PlasmaGet,
    RegisterClient,
    RequestWorkerLease,
    ReturnWorkerLease,
    WorkerExited,
    object_manager,
    plasma,
    raylet,
)
from raysim.raycore.raylet.raylet import Raylet
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import GPU, UNIT, NodeResources, ResourceSet
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import Payload, Ref, RemoteFunction, TaskOptions

MS = 1_000_000
S = 1_000_000_000

FREE = RayCosts(raylet_lease_ns=0, raylet_pop_worker_ns=0, raylet_return_ns=0, raylet_message_ns=0)


def function(name: str = "f") -> RemoteFunction:
    return RemoteFunction(name=name, body=lambda running: running.finish())


def options(name: str = "f", **kwargs: Any) -> TaskOptions:
    resources = kwargs.pop("resources", {"CPU": 1})
    return TaskOptions(function=function(name), resources=ResourceSet.of(resources), **kwargs)


class Peer(Component):
    """Answers what it is told to, remembers everything it got."""

    def __init__(self, sim: Simulation, address: str) -> None:
        super().__init__(sim, address)
        self.got: list[Any] = []
        self.answers: dict[type, Any] = {}
        self.open: list[tuple[Any, Reply]] = []
        self.hold: set[type] = set()

    def _find(self, message_type: type) -> Any:
        return type(self).any_message

    def any_message(self, m: Any, reply: Reply) -> None:
        self.got.append(m)
        if type(m) in self.hold:
            self.open.append((m, reply))
            return
        answer = self.answers.get(type(m))
        reply(answer(m) if callable(answer) else answer)

    def of(self, message_type: type) -> list[Any]:
        return [m for m in self.got if isinstance(m, message_type)]


class GcsPeer(Peer):
    """Publishes what raylets report, at once."""

    def __init__(self, sim: Simulation, view: ResourceView) -> None:
        super().__init__(sim, GCS)
        self.view = view

    def any_message(self, m: Any, reply: Reply) -> None:
        name = type(m).__name__
        if name == "RegisterNode":
            self.view.join(m.node_id, NodeResources(m.resources, m.labels))
        elif name == "ReportResources":
            self.view.publish(
                m.node_id, m.available, m.total,
                draining=m.draining, pulls_blocked=m.pulls_blocked,
            )  # fmt: skip
        super().any_message(m, reply)


class Process(Peer):
    """A worker process: registers when it comes up."""

    def __init__(self, world: World, spec: ProcessSpec, worker_id: int) -> None:
        super().__init__(world.sim, f"node-{spec.node_id}/worker-{worker_id}")
        self.world = world
        self.spec = spec
        self.me = WorkerAddress(worker_id, self.address, spec.node_id)
        self.memory = 0
        self.may_leave = True

    def started(self) -> None:
        env = self.spec.runtime_env
        self.call(
            raylet(self.spec.node_id),
            RegisterClient(
                self.me, self.spec.worker_type, self.spec.job_id,
                env.key if env else "", self.spec.startup_token,
            ),
            lambda _: None,
        )  # fmt: skip

    def any_message(self, m: Any, reply: Reply) -> None:
        if type(m).__name__ == "ExitWorker":
            self.got.append(m)
            leaves = self.may_leave or m.force
            reply(leaves)
            if leaves:
                self.world.kill(self.me.worker_id, reason=m.reason, intended=True)
            return
        super().any_message(m, reply)


class Owner(Peer):
    """Asks for leases as an owner does, one spillback deep."""

    def __init__(self, world: World, node_id: int = 0, *, job_id: int = 1) -> None:
        worker_id = world.env.ids.worker()
        super().__init__(world.sim, f"node-{node_id}/driver-{worker_id}")
        self.world = world
        self.me = WorkerAddress(worker_id, self.address, node_id)
        self.job_id = job_id
        self.granted: dict[int, LeaseGranted] = {}
        self.grants: list[tuple[int, int, int]] = []
        """(time, lease, node) in order."""
        self.answered: list[tuple[int, int, Any]] = []
        """(time, lease, answer) of all answers."""

    def ask(
        self,
        opts: TaskOptions,
        *,
        node_id: int | None = None,
        refs: tuple[Ref, ...] = (),
        follow: bool = True,
        spec: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> int:
        lease_id = self.world.env.ids.lease()
        at = self.me.node_id if node_id is None else node_id
        a_spec = LeaseSpec(
            opts, opts.placement_resources or opts.resources, refs, self.me, self.job_id, 0,
            **(spec or {}),
        )  # fmt: skip
        request = RequestWorkerLease(lease_id, a_spec, **kwargs)
        self._send(at, request, follow)
        return lease_id

    def _send(self, at: int, request: RequestWorkerLease, follow: bool) -> None:
        def then(answer: Any) -> None:
            self.answered.append((self.sim.now_ns, request.lease_id, answer))
            if isinstance(answer, LeaseGranted):
                self.granted[request.lease_id] = answer
                self.grants.append((self.sim.now_ns, request.lease_id, answer.worker.node_id))
            elif isinstance(answer, LeaseSpillback) and follow:
                self._send(answer.node_id, replace(request, grant_or_reject=True), follow)

        self.call(raylet(at), request, then)

    def give_back(self, lease_id: int, **kwargs: Any) -> None:
        worker = self.granted.pop(lease_id).worker
        self.send(raylet(worker.node_id), ReturnWorkerLease(lease_id, worker.worker_id, **kwargs))

    def cancel(self, lease_id: int, node_id: int = 0) -> None:
        self.call(raylet(node_id), CancelWorkerLease(lease_id), self.answered_cancel)

    def answered_cancel(self, answer: Any) -> None:
        self.answered.append((self.sim.now_ns, -1, answer))

    def answer(self, lease_id: int) -> Any:
        """The last answer about a lease."""
        return next((a for _, i, a in reversed(self.answered) if i == lease_id), None)


@dataclass
class World:
    """Nodes with raylets, one GCS, processes that start after ``start_ns``."""

    sim: Simulation
    env: Surroundings = field(init=False)
    start_ns: int = 0
    fail_starts: int = 0
    memory_bytes_per_node: int = 100 * 2**30
    processes: dict[int, Process] = field(default_factory=dict)
    pending: dict[int, ProcessSpec] = field(default_factory=dict)
    ended: list[tuple[int, str]] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(time, node)."""
    killed: list[tuple[int, str]] = field(default_factory=list)

    def start(self, spec: ProcessSpec) -> int:
        worker_id = self.env.ids.worker()
        self.starts.append((self.sim.now_ns, spec.node_id))
        if self.fail_starts:
            self.fail_starts -= 1
            return worker_id
        self.pending[worker_id] = spec
        self.sim.call_later(self.start_ns, self._up, worker_id)
        return worker_id

    def _up(self, worker_id: int) -> None:
        spec = self.pending.pop(worker_id, None)
        if spec is not None:
            process = Process(self, spec, worker_id)
            self.processes[worker_id] = process
            self.sim.add(process)

    def kill(self, worker_id: int, *, reason: str, intended: bool = False) -> None:
        process = self.processes.pop(worker_id, None)
        if process is None:
            return
        self.killed.append((worker_id, reason))
        process.crash(reason=reason)
        room = self.sim.components[raylet(process.me.node_id)]
        if room.state == "up":
            message = WorkerExited(process.me, reason, intended)
            room.message_arrives(one_way(room, message))

    def memory_bytes(self, worker_id: int) -> int:
        process = self.processes.get(worker_id)
        return process.memory if process is not None else 0

    def end_processes(self, node_id: int, reason: str) -> None:
        self.ended.append((node_id, reason))
        self.sim.components[raylet(node_id)].crash(reason=reason)
        for worker_id, process in list(self.processes.items()):
            if process.me.node_id == node_id:
                del self.processes[worker_id]
                process.crash(reason=reason)

    # of tests

    def raylet(self, node_id: int = 0) -> Raylet:
        return self.sim.components[raylet(node_id)]  # type: ignore[return-value]

    def peer(self, address: str) -> Any:
        return self.sim.components[address]

    @property
    def gcs(self) -> Any:
        return self.sim.components[GCS]

    def owner(self, node_id: int = 0, **kwargs: Any) -> Owner:
        return self.sim.add(Owner(self, node_id, **kwargs))

    def warm(self, node_id: int, count: int, *, job_id: int = 0) -> None:
        """Idle workers, as if prestarted."""
        self.raylet(node_id).pool.prestart(count, job_id)
        self.sim.run(self.sim.now_ns + self.start_ns + MS)

    def run_for(self, duration_ns: int) -> None:
        self.sim.run(self.sim.now_ns + duration_ns)


def world(
    nodes: list[dict[str, float]],
    *,
    labels: list[dict[str, str]] | None = None,
    start_ns: int = 0,
    costs: RayCosts = FREE,
    latency_ns: int = 1_000,
    check: bool = True,
    log: bool = False,
    config: RayConfig | None = None,
    memory_bytes: int = 100 * 2**30,
    seed: int = 0,
    register: bool = True,
) -> World:
    """Nodes with these resources, all registered."""
    sim = Simulation(seed=seed, check=check)
    sim.transport = InstantTransport(sim.clock, latency_ns)
    a_world = World(sim=sim, start_ns=start_ns)
    hardware = [
        SimpleNamespace(spec=SimpleNamespace(vcpus=n.get("CPU", 1), memory_bytes=memory_bytes))
        for n in nodes
    ]
    a_world.env = Surroundings(
        sim=sim, config=config or RayConfig(), costs=costs, ids=Ids(), view=ResourceView(),
        log=StateLog(enabled=log), network=None, topology=None, nodes=hardware, launcher=a_world,
    )  # type: ignore[arg-type]  # fmt: skip
    sim.add(GcsPeer(sim, a_world.env.view))
    for node_id, resources in enumerate(nodes):
        sim.add(Peer(sim, plasma(node_id)))
        sim.add(Peer(sim, object_manager(node_id)))
        units = {name: round(n * UNIT) for name, n in resources.items()}
        sim.add(
            Raylet(
                a_world.env, node_id, resources=units, labels=labels[node_id] if labels else {},
                is_head=node_id == 0,
            )
        )  # fmt: skip
    if register:
        sim.run(10 * latency_ns + 1)
    return a_world


def holds_arguments(a_world: World, node_id: int, sizes: dict[int, int]) -> None:
    """The node's store has these objects."""

    def payloads(m: PlasmaGet) -> tuple[Payload | None, ...]:
        return tuple(Payload(sizes[i]) if i in sizes else None for i in m.object_ids)

    a_world.peer(plasma(node_id)).answers[PlasmaGet] = payloads


def gpu_slots(granted: LeaseGranted, name: str = GPU) -> list[int]:
    """Which GPUs a lease got."""
    taken = granted.resource_ids[name]
    assert isinstance(taken, list)
    return [i for i, n in enumerate(taken) if n]
