"""Looking into every room of a cluster at once: what is left over, and what is waited for.

``leaks`` is for a cluster whose programs have let go of everything: whatever a room still holds
then was forgotten. ``waiting_on`` names every open call of a cluster that does not go on, with what
it waits for. Both read the private books of rooms and change nothing; for tests and for a person
who asks why a run stands still.

Real counterpart: ``ray memory``, ``ray list tasks``, and the invariants that Ray's chaos tests look
at in the end. Rooms of dead nodes and processes are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from raysim.kernel.component import Component
from raysim.raycore.cluster import Cluster
from raysim.raycore.core_worker.worker import CoreWorker
from raysim.raycore.ids import NodeID
from raysim.raycore.object_manager.object_manager import ObjectManager
from raysim.raycore.plasma import PlasmaStore
from raysim.raycore.protocol import object_manager, plasma, raylet
from raysim.raycore.raylet.raylet import Raylet

ARGUMENTS_WAIT = "its arguments do not fit beside those of leases that run"
"""What ``waiting_on`` says of a lease held up by ``max_task_args_memory_fraction``. If what runs
waits for that lease, neither goes on: in Ray neither."""
EXIT_WAITS = "which exits when the calls it has begun end"
"""What ``waiting_on`` says of calls that such an actor will not begin. If those it has begun wait
for one of them, none goes on: nor in Ray, whose ``TaskReceiver::Stop`` waits on the main thread."""

_Books = Iterator[tuple[str, Any]]


def leaks(cluster: Cluster) -> list[str]:
    """What is left in live rooms, one line each; nothing on a cluster that is clean."""
    found: list[str] = []
    for node_id in range(len(cluster.env.nodes)):
        if cluster.is_up(node_id) and not cluster.wire.is_cut(node_id):
            found += _of_node(cluster, node_id)
    for process in cluster.processes.values():
        if isinstance(process, CoreWorker) and process.state == "up":
            found += _left(process, _of_process(process))
    if cluster.gcs.state == "up":
        found += _left(cluster.gcs, _of_gcs(cluster))
    return found


def _left(room: Component, books: _Books) -> list[str]:
    """A line per book that is not empty."""
    return [f"{room.address}: {name}: {_short(what)}" for name, what in books if what]


def _short(what: Any) -> str:
    if isinstance(what, dict):
        what = list(what.values()) if _speaks(what) else list(what)
    text = str(what)
    return text if len(text) <= 300 else text[:300] + "..."


def _speaks(books: dict[Any, Any]) -> bool:
    """Whether its values say who they are."""
    return isinstance(next(iter(books.values())), (str, tuple))


def _of_node(cluster: Cluster, node_id: NodeID) -> list[str]:
    rooms = cluster.sim.components
    scheduler, store, manager = (
        rooms[raylet(node_id)], rooms[plasma(node_id)], rooms[object_manager(node_id)],
    )  # fmt: skip
    assert isinstance(scheduler, Raylet)
    assert isinstance(store, PlasmaStore)
    assert isinstance(manager, ObjectManager)
    return [
        *_left(scheduler, _of_raylet(scheduler)),
        *_left(store, _of_plasma(store)),
        *_left(manager, _of_object_manager(manager)),
    ]


def _of_raylet(room: Raylet) -> _Books:
    resources, local = room.resources, room.local
    yield "leases", {n: f"{n} {lease.state}" for n, lease in room.leases.items()}
    yield "resources in use", {
        name: f"{name}: {resources.available[name]} of {total}"
        for name, total in resources.total.items() if resources.available[name] != total
    }  # fmt: skip
    yield "bundles prepared", room.bundles.prepared
    yield "bundles committed", room.bundles.committed
    yield "leases held", local.held
    yield "leases that wait for arguments", local.waiting
    yield "bytes of arguments", local.dependencies.granted_bytes
    yield "leases that wait for a worker", room.pool.pending
    yield "leases infeasible", bool(room.cluster.infeasible)
    yield "backlogs", room.cluster.backlogs
    yield "leased workers", [w.worker_id for w in room.pool.workers.values() if w.lease]
    yield "calls not answered", _open(room)
    yield "calls kept for the GCS", room.gcs._kept


def _of_plasma(room: PlasmaStore) -> _Books:
    yield (
        "objects",
        {
            i: f"{i:x} {s.size} bytes, used by {s.uses}, reserved for {s.reserved}"
            for i, s in room.objects.items()
        },
    )
    yield "bytes used", room.used
    yield "bytes in use", room.in_use
    yield "bytes in the making", room.unsealed
    yield "creates that wait", len(room._creates)
    yield "gets that wait", room._waiting
    yield "calls not answered", _open(room)


def _of_object_manager(room: ObjectManager) -> _Books:
    spills, requests = room.spills, room.requests
    yield "objects", {i: f"{i:x} pins {x.pins} freed {x.freed}" for i, x in room.local.items()}
    yield "objects being sealed", room.made
    yield "requests", requests.pulls.bundles
    yield "pulls", requests.pulls.pulls
    yield "arguments held", requests.held
    yield "subscriptions", room.directory._owners
    yield "pushes", room.pushes.pushes
    yield "bytes in flight", room.pushes.in_flight
    yield "arrivals", room.receiver.arrivals
    yield "primaries pinned", spills.pinned
    yield "primaries being spilled", spills.spilling
    yield "spilled objects", spills.spilled
    yield "objects being restored", spills.restoring
    yield "spill files", spills._files
    yield "bytes of spill files", spills.file_bytes
    yield "bytes of fallback allocations", spills.fallback_bytes
    yield "primary bytes", spills.primary_bytes
    yield "jobs for IO workers", len(spills.spill_workers.jobs) + len(spills.restore_workers.jobs)
    yield "objects of owners", room._owned
    yield "calls not answered", _open(room)


def _of_process(room: CoreWorker) -> _Books:
    yield "references", {i: f"{r!r} {r.value}" for i, r in room.references.table.items()}
    yield "objects owned", room.references.owned
    yield "borrowed objects unknown to their owners", room.references.unknown
    yield "tasks", {n: f"{n} {t.state}" for n, t in room.tasks.pending.items()}
    yield "lineage", room.tasks.lineage
    yield "generators", room.streams.streams
    yield "lease requests", [r for e in room.leases.entries.values() for r in e.requests]
    yield "leases", [n for e in room.leases.entries.values() for n in e.leases]
    yield "calls of actors", [
        f"{a.actor_id}: {a.pending}" for a in room.actors.actors.values()
        if a.pending or a.queue or a.inflight or a.waiting
    ]  # fmt: skip
    yield "tasks running", room.executor.running
    yield "tasks here that wait", room.executor.waiting
    yield (
        "calls to other processes",
        [f"{call.then!r}" for calls in room.calls._out.values() for call in calls],
    )
    yield "gets that block", room.objects.blocked
    yield "calls not answered", _open(room)
    yield "calls kept for the GCS", room.gcs._kept


def _of_gcs(cluster: Cluster) -> _Books:
    room = cluster.gcs
    dead_nodes = [n for n in room.tables.nodes if not cluster.is_up(n)]
    yield "nodes that are not up", dead_nodes
    yield "actors", {
        n: f"{n} {actor.state} {actor.phase}" for n, actor in room.tables.actors.items()
        if actor.state != "DEAD" and not actor.options.detached
    }  # fmt: skip
    yield "groups", {n: f"{n} {g.state}" for n, g in room.tables.groups.items()}
    yield "groups being placed", room.bundle_scheduler._under_way
    yield (
        "names of no actor",
        {key: n for key, n in room.tables.actor_names.items() if n not in room.tables.actors},
    )
    yield "calls to nodes", {n: list(calls) for n, calls in room.nodes._calls.items() if calls}
    yield "calls not answered", _open(room)


def _open(room: Component) -> list[str]:
    """Calls it has accepted and not answered."""
    return [
        f"{type(call.message).__name__} of {call.caller.address if call.caller else 'nobody'}"
        for call in room.unanswered
    ]


# ---- what is waited for --------------------------------------------------------------------------


def waiting_on(cluster: Cluster) -> list[str]:
    """Every task, get and call that is open, and on what; ``LOST`` if nothing will answer it."""
    found: list[str] = []
    for process in cluster.processes.values():
        if isinstance(process, CoreWorker) and process.state == "up":
            found += [f"{process.address}: {line}" for line in _tasks(cluster, process)]
            found += [f"{process.address}: {line}" for line in _objects(cluster, process)]
    for room in cluster.sim.components.values():
        if room.state == "up" and not isinstance(room, CoreWorker):
            found += [f"{room.address} owes {line}" for line in _open(room)]
    return found


def _tasks(cluster: Cluster, process: CoreWorker) -> Iterator[str]:
    for task in process.tasks.pending.values():
        name = f"task {task.spec.task_id} ({task.spec.name})"
        if task.spec.kind == "ACTOR_TASK":
            actor = process.actors.actors[task.spec.actor_id]
            at = actor.address.address if actor.address else "nowhere"
            home = cluster.processes.get(actor.address.worker_id) if actor.address else None
            said = ""
            if isinstance(home, CoreWorker) and home.executor.stopped:
                begun = home.executor.running
                said = f", {EXIT_WAITS}" if begun and task.spec.task_id not in begun else ""
            yield f"{name} is {task.state} for actor {actor.actor_id}, {actor.state} at {at}{said}"
        elif task.spec.kind == "ACTOR_CREATION_TASK":
            row = cluster.gcs.tables.actors.get(task.spec.actor_id)
            state = f"{row.state} {row.phase}" if row is not None else "unknown"
            yield f"{name} waits for actor {task.spec.actor_id}, {state} in the GCS"
        elif task.state == "queued":
            yield f"{name} is queued: {_requests(cluster, task.via)}"
        elif task.state == "pushed":
            worker = cluster.processes.get(task.via.worker.worker_id)
            there = worker is not None and task.spec.task_id in (
                *worker.executor.running, *worker.executor.waiting
            ) if isinstance(worker, CoreWorker) else False  # fmt: skip
            yield f"{name} runs at {task.via.address}" if there else f"LOST: {name} was pushed"
        else:
            yield f"{name} is {task.state}, {task.unresolved} arguments missing"


def _requests(cluster: Cluster, entry: Any) -> str:
    """What the raylets that were asked say of it."""
    said = []
    for request in entry.requests.values():
        room = cluster.sim.components.get(raylet(request.node_id))
        assert room is None or isinstance(room, Raylet)
        lease = room.leases.get(request.lease_id) if room is not None else None
        if room is None or room.state != "up":
            said.append(f"{request.lease_id} at node {request.node_id}, which is down")
        elif lease is None:
            said.append(f"LOST: request {request.lease_id} is not at node {request.node_id}")
        elif not room.local.has_room_for_arguments(lease):
            said.append(f"{request.lease_id} at node {request.node_id}: {ARGUMENTS_WAIT}")
        else:
            said.append(f"{request.lease_id} is {lease.state} at node {request.node_id}")
    return ", ".join(said) or (
        f"{len(entry.leases)} leases" if entry.leases else "LOST: nothing was asked for"
    )


def _objects(cluster: Cluster, process: CoreWorker) -> Iterator[str]:
    for record in process.references.table.values():
        if not record.waiters:
            continue
        owner = cluster.worker_at(record.owner)
        if owner is process:
            task = record.task
            state = task.state if task is not None else "put"
            lost = "" if task is None or task.spec.task_id in process.tasks.pending else "LOST: "
            yield f"{lost}object {record.object_id:x} ({record.value}), of task {state}"
        else:
            alive = "alive" if owner is not None else "dead"
            yield f"object {record.object_id:x} of {record.owner.address}, which is {alive}"
