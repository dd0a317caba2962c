"""Real core workers among scripted raylets, stores and a GCS, on an instant transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raysim.hardware.server import SharedServer
from raysim.kernel.component import Component, Failure, Reply
from raysim.kernel.simulation import Simulation
from raysim.kernel.transport import InstantTransport
from raysim.perf.ray_core import RayCosts
from raysim.raycore import protocol as p
from raysim.raycore import scripts as b
from raysim.raycore.config import RayConfig
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.ids import Ids
from raysim.raycore.resource_view import ResourceView
from raysim.raycore.resources import NodeResources, ResourceSet
from raysim.raycore.room import Surroundings
from raysim.raycore.state_log import StateLog
from raysim.raycore.tasks import ActorOptions, Payload, TaskError, TaskOptions

US = 1_000
MS = 1_000_000
S = 1_000_000_000

NO_TIME = RayCosts(
    submit_task_ns=0, submit_actor_task_ns=0, get_ns=0, put_ns=0, wait_ns=0, per_ref_wait_ns=0,
    io_submit_ns=0, io_lease_reply_ns=0, io_reply_ns=0, io_message_ns=0, execute_ns=0,
    execute_task_ns=0, execute_async_ns=0, per_return_ns=0, export_function_ns=0,
    import_function_ns=0, submit_args_ns=0, per_arg_ns=0, execute_args_ns=0, force_exit_ns=0,
)  # fmt: skip
"""Only what a test says takes time."""

CPU = ResourceSet.of({"CPU": 1})


def options(body: Any, **kwargs: Any) -> TaskOptions:
    kwargs.setdefault("resources", CPU)
    return TaskOptions(function=b.function(body), **kwargs)


def method(body: Any, **kwargs: Any) -> TaskOptions:
    return options(body, resources=ResourceSet(), max_retries=kwargs.pop("retries", 0), **kwargs)


def actor(body: Any = b.no_op, **kwargs: Any) -> TaskOptions:
    return options(body, resources=ResourceSet(), actor=ActorOptions(**kwargs))


class Raylet(Component):
    """Grants workers first come, first served."""

    def __init__(self, house: House, node_id: int) -> None:
        super().__init__(house.sim, p.raylet(node_id))
        self.house = house
        self.got: list[Any] = []
        self.idle: deque[CoreWorker] = deque()
        self.queue: deque[tuple[p.RequestWorkerLease, Reply]] = deque()
        self.most = 0
        """Requests that ever waited at once, granted ones not counted."""
        self.causes: deque[Any] = deque()
        """Of worker failures."""
        self.answer: Callable[[p.RequestWorkerLease], Any] | None = None
        self.granting = True
        self.disconnected: list[str] = []

    def on_register_client(self, m, reply):
        reply()

    def on_disconnect_client(self, m, reply):
        self.disconnected.append(m.reason)

    def on_request_worker_lease(self, m, reply):
        self.got.append(m)
        if self.answer is not None and (answer := self.answer(m)) is not None:
            reply(answer)
            return
        self.queue.append((m, reply))
        self.most = max(self.most, len(self.queue))
        self.grant()

    def grant(self):
        while self.granting and self.queue and self.idle:
            worker = self.idle.popleft()
            if worker.state != "up":
                continue
            m, reply = self.queue.popleft()
            reply(p.LeaseGranted(m.lease_id, worker.me, {"CPU": 10_000}))

    def on_return_worker_lease(self, m, reply):
        self.got.append(m)
        worker = self.house.processes.get(m.worker_id)
        if worker is not None and worker.state == "up" and not m.worker_exiting:
            self.idle.append(worker)
            self.grant()

    def on_cancel_worker_lease(self, m, reply):
        self.got.append(m)
        for waiting in self.queue:
            if waiting[0].lease_id == m.lease_id:
                self.queue.remove(waiting)
                waiting[1](p.LeaseCancelled("INTENDED"))
                reply(True)
                return
        reply(False)

    def on_report_worker_backlog(self, m, reply):
        self.got.append(m)

    def on_notify_worker_blocked(self, m, reply):
        self.got.append(m)

    def on_notify_worker_unblocked(self, m, reply):
        self.got.append(m)

    def on_actor_creation_task_done(self, m, reply):
        self.got.append(m)

    def on_get_worker_failure_cause(self, m, reply):
        reply(self.causes.popleft() if self.causes else (None, True))

    def of(self, kind: type) -> list[Any]:
        return [m for m in self.got if isinstance(m, kind)]


class Plasma(Component):
    """Everything fits."""

    def __init__(self, house: House, node_id: int) -> None:
        super().__init__(house.sim, p.plasma(node_id))
        self.objects: dict[int, Payload] = {}
        self.in_use: dict[int, int] = {}

    def on_plasma_create(self, m, reply):
        reply(p.PlasmaCreated(existed=m.object_id in self.objects))

    def on_plasma_seal(self, m, reply):
        self.objects[m.object_id] = m.payload
        reply()

    def on_plasma_get(self, m, reply):
        assert m.timeout_ns == 0 or all(i in self.objects for i in m.object_ids)
        payloads = tuple(self.objects.get(i) for i in m.object_ids)
        for i in m.object_ids:
            if i in self.objects:
                self.in_use[i] = self.in_use.get(i, 0) + 1
        reply(payloads)

    def on_plasma_release(self, m, reply):
        self.in_use[m.object_id] -= 1


class Manager(Component):
    """Copies what is asked for as soon as its owner knows where it is."""

    def __init__(self, house: House, node_id: int) -> None:
        super().__init__(house.sim, p.object_manager(node_id))
        self.house = house
        self.node_id = node_id
        self.waiting: dict[tuple[str, int], list[Any]] = {}
        self.pinned: dict[int, None] = {}
        self.freed: list[int] = []

    @property
    def here(self):
        return self.house.plasma[self.node_id].objects

    def on_async_get_objects(self, m, reply):
        missing = {r.object_id: r for r in m.refs if r.object_id not in self.here}
        if not missing:
            reply()
            return
        self.waiting[m.request_id] = [missing, reply]
        for ref in missing.values():
            self.send(ref.owner.address, p.SubscribeObjectLocations(ref.object_id, self.address))

    def on_object_locations(self, m, reply):
        if m.ref_removed:
            self.done(m.object_id, TaskError("OBJECT_LOST"))
            return
        for node_id in m.node_ids:
            there = self.house.plasma[node_id]
            if there.state == "up" and m.object_id in there.objects:
                self.here.setdefault(m.object_id, there.objects[m.object_id])
                self.done(m.object_id, None)
                return

    def done(self, object_id, answer):
        for request_id, (missing, reply) in list(self.waiting.items()):
            ref = missing.pop(object_id, None)
            if ref is None:
                continue
            self.send(
                ref.owner.address,
                p.SubscribeObjectLocations(object_id, self.address, unsubscribe=True),
            )
            if answer is None:
                update = (p.LocationUpdate(object_id, added=True),)
                self.send(ref.owner.address, p.UpdateObjectLocationBatch(self.node_id, update))
            if answer is not None or not missing:
                del self.waiting[request_id]
                reply(answer)

    def on_cancel_get_request(self, m, reply):
        self.waiting.pop(m.request_id, None)

    def on_pin_object_ids(self, m, reply):
        there = tuple(i in self.here for i in m.object_ids)
        self.pinned.update(dict.fromkeys(m.object_ids))
        reply(there)

    def on_free_objects(self, m, reply):
        for object_id in m.object_ids:
            self.freed.append(object_id)
            self.here.pop(object_id, None)
            self.pinned.pop(object_id, None)


class Gcs(Component):
    """Knows everything at once; creates actors on workers of node 0 and restarts them."""

    def __init__(self, house: House) -> None:
        super().__init__(house.sim, p.GCS)
        self.house = house
        self.got: list[Any] = []
        self.subscribers: dict[str, None] = {}
        self.watchers: dict[int, dict[str, None]] = {}
        self.rows: dict[int, p.ActorTableData] = {}
        self.specs: dict[int, Any] = {}
        self.restart_after_ns = 100 * MS

    def on_add_job(self, m, reply):
        reply()

    def on_mark_job_finished(self, m, reply):
        self.got.append(m)
        reply()

    def on_subscribe_all(self, m, reply):
        self.subscribers[m.subscriber] = None
        reply()

    def on_internal_kv_put(self, m, reply):
        self.got.append(m)
        reply(True)

    def on_internal_kv_get(self, m, reply):
        self.got.append(m)
        reply(p.KVValue(None, 1_000))

    def on_register_actor(self, m, reply):
        self.specs[m.spec.actor_id] = m.spec
        self.say(m.spec.actor_id, "DEPENDENCIES_UNREADY")
        reply(self.rows[m.spec.actor_id])

    def on_create_actor(self, m, reply):
        self.place(m.spec.actor_id, reply)

    def place(self, actor_id, reply=None):
        spec = self.specs[actor_id]
        worker = self.house.raylets[0].idle.popleft()

        def created(answer):
            if isinstance(answer, Failure):
                self.died(actor_id, "died in its constructor")
            elif answer.error is not None:
                self.say(actor_id, "DEAD", death_cause=answer.error)
            else:
                self.say(actor_id, "ALIVE", address=worker.me)
            if reply is not None:
                reply(self.rows[actor_id])

        self.call(worker.address, p.push_task(spec, {}), created)

    def say(self, actor_id, state, **kwargs):
        spec = self.specs[actor_id]
        old = self.rows.get(actor_id)
        restarts = (old.num_restarts if old else 0) + (state == "RESTARTING")
        row = p.ActorTableData(
            actor_id, state, kwargs.get("address"), restarts, spec.options, spec.caller,
            spec.job_id, kwargs.get("death_cause"),
        )  # fmt: skip
        self.rows[actor_id] = row
        for subscriber in self.watchers.get(actor_id, ()):
            self.send(subscriber, p.ActorStateChanged(row))

    def died(self, actor_id, reason):
        row = self.rows[actor_id]
        if row.state == "DEAD":
            return
        if row.num_restarts < self.specs[actor_id].options.actor.max_restarts:
            self.say(actor_id, "RESTARTING")
            self.after(self.restart_after_ns, lambda _: self.place(actor_id))
        else:
            self.say(actor_id, "DEAD", death_cause=TaskError("ACTOR_DIED", reason))

    def on_subscribe_actor(self, m, reply):
        self.watchers.setdefault(m.actor_id, {})[m.subscriber] = None
        if m.unsubscribe:
            del self.watchers[m.actor_id][m.subscriber]
        reply(self.rows.get(m.actor_id))

    def on_report_actor_out_of_scope(self, m, reply):
        self.got.append(m)
        row = self.rows[m.actor_id]
        if row.address is not None:
            kill = p.KillActor(m.actor_id, force_kill=False, no_restart=True)
            self.send(row.address.address, kill)
        self.say(m.actor_id, "DEAD", death_cause=TaskError("ACTOR_DIED", "out of scope"))
        reply()

    def on_kill_actor_via_gcs(self, m, reply):
        row = self.rows[m.actor_id]
        if m.no_restart:
            self.say(m.actor_id, "DEAD", death_cause=TaskError("ACTOR_DIED", "ray.kill"))
        if row.address is not None:
            kill = p.KillActor(m.actor_id, force_kill=True, no_restart=m.no_restart)
            self.send(row.address.address, kill)
        reply(True)

    def publish(self, message):
        for subscriber in list(self.subscribers):
            self.send(subscriber, message)


class Machine:
    """As much of a host as a core worker uses."""

    def __init__(self, sim: Simulation, name: str, cores: int) -> None:
        self.cpu = SharedServer(sim, f"{name}/cpu", cores, max_per_s=1.0)
        self.memory = self
        self._sim = sim

    def job(self, size_bytes, then, arg, *, max_bytes_per_s):
        self._sim.call_later(int(size_bytes / max_bytes_per_s * S), then, arg)


class House:
    """Nodes with ``workers`` registered processes each, and a driver on node 0."""

    def __init__(
        self,
        *,
        nodes: int = 1,
        workers: int = 4,
        costs: RayCosts = NO_TIME,
        latency_ns: int = 0,
        config: RayConfig | None = None,
        log: bool = False,
        check: bool = False,
    ) -> None:
        self.sim = Simulation(check=check)
        self.sim.transport = InstantTransport(self.sim.clock, latency_ns)
        self.env = Surroundings(
            sim=self.sim, config=config or RayConfig(), costs=costs, ids=Ids(),
            view=ResourceView(), log=StateLog(enabled=log), network=None, topology=None,
            launcher=self,
            nodes=[Machine(self.sim, f"node-{i}", 4) for i in range(nodes)],
        )  # fmt: skip
        self.processes: dict[int, CoreWorker] = {}
        self.gcs = self.sim.add(Gcs(self))
        self.raylets = [self.sim.add(Raylet(self, i)) for i in range(nodes)]
        self.plasma = [self.sim.add(Plasma(self, i)) for i in range(nodes)]
        self.managers = [self.sim.add(Manager(self, i)) for i in range(nodes)]
        for i in range(nodes):
            self.env.view.join(i, NodeResources({"CPU": 40_000}))
            self.start(i, workers)
        self.driver = self.add(0, "DRIVER")

    def add(self, node_id: int, kind: Any = "WORKER") -> CoreWorker:
        process = CoreWorker(self.env, node_id, self.env.ids.worker(), kind, 1)
        self.processes[process.me.worker_id] = process
        return self.sim.add(process)

    def start(self, node_id: int, workers: int) -> None:
        self.raylets[node_id].idle.extend(self.add(node_id) for _ in range(workers))

    def kill(self, worker_id: int, *, reason: str, intended: bool = False) -> None:
        """As the operating system; the GCS and an actor's owner hear of it."""
        process = self.processes.pop(worker_id, None)
        if process is None:
            return
        actor_id = process.executor.actor_id
        process.crash(reason=reason)
        self.gcs.publish(p.WorkerFailed(process.me, reason, intended))
        if actor_id:
            self.gcs.died(actor_id, reason)

    def remove_node(self, node_id: int) -> None:
        """It is declared dead, silently gone before."""
        self.env.view.leave(node_id)
        for process in list(self.processes.values()):
            if process.me.node_id == node_id:
                del self.processes[process.me.worker_id]
                process.crash(silent=True)
        for room in (self.raylets[node_id], self.plasma[node_id], self.managers[node_id]):
            room.crash(silent=True)
        self.gcs.publish(p.NodeRemoved(node_id, expected=False, reason="gone"))

    def play(self, script: Any, until: int | None = None) -> Any:
        """Run it in the driver; what it returned."""
        out: list[Any] = []
        self.driver.ready(lambda driver: b.drive(driver, script, out.append))
        self.sim.run(until)
        assert out, "the script did not end"
        return out[0]

    def leftovers(self) -> dict[str, Any]:
        """Records that any process still has."""
        return {
            c.address: list(c.references.table.values())
            for c in self.processes.values()
            if c.references.table
        }
