"""Why a task has not started yet, in one sentence with the numbers.

Real counterpart: none in one place. Ray has the states of ``ray list tasks``, the raylet's debug
state (``waiting for resources``, ``for worker``, ``for plasma memory``...) and the autoscaler's
infeasible warnings; people put them together by hand.

A cause is looked for from the task outwards: its arguments (and the task that makes them, back to
the first that does not itself wait for arguments), its actor, its owner's queue, the lease request
that will serve it, and the raylet where that request stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from raysim.raycore.config import RayConfig
from raysim.raycore.ids import ActorID, NodeID, ObjectID, TaskID, hex_id, task_of
from raysim.raycore.protocol import LeaseSpec
from raysim.raycore.tasks import Ref, TaskSpec
from raysim.raystate.moment import ENDED, LEASE_ENDED, LeaseEntry, Moment, TaskAttempt
from raysim.raystate.names import node_name, task_name
from raysim.results.ray.shortage import (
    class_cap,
    closest,
    fetching,
    free_anywhere,
    missing_on,
    plural,
    seconds,
    shortage,
    size,
)
from raysim.units import format_bytes

RUNNING = frozenset(
    {"RUNNING", "RUNNING_IN_RAY_GET", "RUNNING_IN_RAY_WAIT", "GETTING_AND_PINNING_ARGS"}
)


_Queue = tuple[int, tuple[Any, ...]]
"""(owner's worker, scheduling class)."""


class Cause(NamedTuple):
    """What a task waits for."""

    kind: str
    """``not pending``, ``argument``, ``owner``, ``lease requests``, ``resources``, ``infeasible``,
    ``worker process``, ``class cap``, ``argument memory``, ``arguments fetch``, ``raylet queue``,
    ``actor``, ``push``: to count by.
    """
    sentence: str


def why_pending(now: Moment, task_id: TaskID, *, config: RayConfig | None = None) -> str:
    """An English sentence: what the task waits for at this moment.

    Raises
    ------
    KeyError
        No such task has been submitted yet.
    """
    return pending_cause(now, task_id, config=config).sentence


def pending_cause(now: Moment, task_id: TaskID, *, config: RayConfig | None = None) -> Cause:
    """The same with the kind of cause."""
    if task_id not in now.tasks:
        raise KeyError(
            f"no task {hex_id('task', task_id)} has been submitted by {seconds(now.t_ns)}"
        )
    return _Inquiry(now, config or RayConfig()).task(now.tasks[task_id])


def pending_causes(now: Moment, *, config: RayConfig | None = None) -> Counter[str]:
    """How many tasks wait for each kind of cause."""
    inquiry = _Inquiry(now, config or RayConfig())
    kinds = Counter(
        inquiry.task(attempt).kind
        for attempt in now.tasks.values()
        if attempt.state not in ENDED and attempt.state not in RUNNING
    )
    del kinds["not pending"]
    return kinds


def _named(attempt: TaskAttempt) -> str:
    name = task_name(attempt.spec) if attempt.spec else "task"
    return f"{name} (task {hex_id('task', attempt.task_id)})"


def _actor(actor_id: ActorID) -> str:
    return f"actor {hex_id('actor', actor_id)}"


class _Inquiry:
    """One moment with the indexes that several questions share."""

    def __init__(self, now: Moment, config: RayConfig) -> None:
        self.now = now
        self.config = config
        self.open_leases: dict[_Queue, list[LeaseEntry]] = {}
        self.granted: dict[_Queue, list[LeaseEntry]] = {}
        self.actor_leases: dict[int, LeaseEntry] = {}
        for lease in now.leases.values():
            if lease.spec is None or lease.state in LEASE_ENDED:
                continue
            queue = (lease.spec.owner.worker_id, lease.spec.scheduling_class)
            kept = self.granted if lease.state == "GRANTED" else self.open_leases
            kept.setdefault(queue, []).append(lease)
            if lease.spec.actor_id and lease.state != "GRANTED":
                self.actor_leases[lease.spec.actor_id] = lease
        self.runs_on: dict[int, TaskAttempt] = {}
        self.creations: dict[int, TaskAttempt] = {}
        self.calls: dict[int, list[TaskAttempt]] = {}
        self.place: dict[TaskID, int] = {}
        """How many tasks of its scheduling key, or (unresolved) of its owner, are before it."""
        self.counts: Counter[object] = Counter()
        """How many wait by (owner's worker, scheduling key; None: not resolved)."""
        for attempt in now.tasks.values():
            self.index(attempt)

    def index(self, attempt: TaskAttempt) -> None:
        """Where to find a task by what it waits for."""
        spec = attempt.spec
        if attempt.state in RUNNING and attempt.worker_id:
            self.runs_on[attempt.worker_id] = attempt
        if spec is None:
            return
        if spec.kind == "ACTOR_CREATION_TASK":
            self.creations[spec.actor_id] = attempt
        elif spec.kind == "ACTOR_TASK" and attempt.state not in ENDED:
            self.calls.setdefault(spec.actor_id, []).append(attempt)
        if attempt.state in {"PENDING_ARGS_AVAIL", "PENDING_NODE_ASSIGNMENT"}:
            resolved = attempt.state == "PENDING_NODE_ASSIGNMENT"
            queue = (spec.caller.worker_id, self.key(spec) if resolved else None)
            self.place[attempt.task_id] = self.counts[queue]
            self.counts[queue] += 1

    def key(self, spec: TaskSpec) -> tuple[object, ...]:
        """Its scheduling key: class, arguments in plasma, runtime environment."""
        objects, env = self.now.objects, spec.options.runtime_env
        refs = tuple(
            arg.object_id
            for arg in spec.args
            if isinstance(arg, Ref) and not ((entry := objects.get(arg.object_id)) and entry.inline)
        )
        return (spec.options.scheduling_class, spec.depth, refs, env.key if env else "")

    # ---- the task itself

    def task(self, attempt: TaskAttempt) -> Cause:
        """From its state."""
        spec, state, what = attempt.spec, attempt.state, _named(attempt)
        if state in ENDED or state in RUNNING:
            where = f" on {node_name(attempt.node_id)}" if attempt.node_id >= 0 else ""
            since = seconds(attempt.since_ns)
            return Cause("not pending", f"{what} is not pending: {state}{where} since {since}.")
        if spec is None:
            return Cause("owner", f"{what} is {state}; what it was submitted with is not recorded.")
        if spec.kind == "ACTOR_CREATION_TASK" and self.placing(spec.actor_id):
            return self.at_gcs(attempt, spec)
        if state == "PENDING_ARGS_AVAIL":
            return self.arguments(attempt, spec)
        if state in {"PENDING_OBJ_STORE_MEM_AVAIL", "PENDING_ARGS_FETCH"}:
            return self.lease_of(attempt, spec) or Cause("arguments fetch", f"{what} is {state}.")
        if state == "SUBMITTED_TO_WORKER":
            return self.pushed(attempt)
        if state == "PENDING_ACTOR_TASK_ARGS_FETCH":
            missing = missing_on(self.now, spec.args, attempt.node_id)
            return Cause(
                "arguments fetch",
                f"{what} waits on {node_name(attempt.node_id)} for its arguments to arrive"
                f"{fetching(self.now, missing)}.",
            )
        if state == "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY":
            return self.ordering(attempt, spec)
        if spec.kind == "ACTOR_TASK":
            return self.actor(attempt, spec)
        return self.lease_of(attempt, spec) or self.owner_queue(attempt, spec)

    def arguments(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """Its references are not all made yet."""
        what = _named(attempt)
        missing = self.missing(spec)
        if not missing:
            if spec.kind == "ACTOR_TASK" and not self.alive(spec.actor_id):
                return self.actor(attempt, spec)
            return self.owner(attempt, spec)
        refs = sum(isinstance(arg, Ref) for arg in spec.args)
        sentence = f"{what} waits for {len(missing)} of its {plural(refs, 'argument')}"
        maker, steps = self.first_maker(missing[0])
        if maker is None:
            lost = self.now.objects.get(missing[0])
            how = "is lost" if lost and lost.lost else "has not been put yet"
            return Cause("argument", f"{sentence}: object {hex_id('object', missing[0])} {how}.")
        through = f", through {plural(steps, 'task')} between" if steps else ""
        sentence += f"; the first comes from {_named(maker)}{through}"
        if maker.state in RUNNING:
            where = node_name(maker.node_id)
            return Cause(
                "argument",
                f"{sentence}, {maker.state} on {where} since {seconds(maker.since_ns)}.",
            )
        if maker.state in ENDED:
            return Cause("argument", f"{sentence}, which is {maker.state}: its value is gone.")
        inner = self.task(maker).sentence
        return Cause("argument", f"{sentence}, which is {maker.state}: {inner}")

    def missing(self, spec: TaskSpec) -> list[ObjectID]:
        """Arguments that exist nowhere."""
        objects = self.now.objects
        return [
            arg.object_id
            for arg in spec.args
            if isinstance(arg, Ref)
            and not ((entry := objects.get(arg.object_id)) and entry.there)
            and not self.failed(arg.object_id)
        ]

    def failed(self, number: ObjectID) -> bool:
        """Whether an error takes its place."""
        maker = self.now.tasks.get(task_of(number))
        return maker is not None and maker.state == "FAILED"

    def first_maker(self, number: ObjectID) -> tuple[TaskAttempt | None, int]:
        """The first task back along missing arguments that does not itself wait for one."""
        steps = 0
        maker = self.now.tasks.get(task_of(number))
        while maker is not None and maker.state == "PENDING_ARGS_AVAIL" and maker.spec is not None:
            missing = self.missing(maker.spec)
            before = self.now.tasks.get(task_of(missing[0])) if missing else None
            if before is None:
                break
            maker, steps = before, steps + 1
        return maker, steps

    def owner(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """Submitted, but the owner's io thread has not come to it."""
        before = self.place.get(attempt.task_id, 0)
        return Cause(
            "owner",
            f"{_named(attempt)} has all its arguments; its owner, worker {spec.caller.worker_id} on"
            f" {node_name(spec.caller.node_id)}, has yet to handle it, after"
            f" {plural(before, 'task')} submitted before it.",
        )

    def pushed(self, attempt: TaskAttempt) -> Cause:
        """On the wire, or behind what its worker runs."""
        where = f"worker {attempt.worker_id} on {node_name(attempt.node_id)}"
        sentence = f"{_named(attempt)} was sent to {where} at {seconds(attempt.since_ns)}"
        running = self.runs_on.get(attempt.worker_id)
        if running is not None and running is not attempt:
            since = seconds(running.since_ns)
            return Cause("push", f"{sentence}, which runs {_named(running)} since {since}.")
        return Cause("push", f"{sentence}, which has yet to begin it.")

    # ---- actors

    def placing(self, actor_id: int) -> bool:
        """Whether the GCS looks for a worker for it."""
        entry = self.now.actors.get(actor_id)
        return entry is not None and entry.state in {"PENDING_CREATION", "RESTARTING"}

    def alive(self, actor_id: int) -> bool:
        """Whether calls can be sent."""
        entry = self.now.actors.get(actor_id)
        return entry is not None and entry.state == "ALIVE"

    def actor(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """A call that cannot be sent yet."""
        what = _named(attempt)
        entry = self.now.actors.get(spec.actor_id)
        state = entry.state if entry else "not registered yet"
        if state == "ALIVE":
            return self.owner(attempt, spec)
        creation = self.creations.get(spec.actor_id)
        sentence = f"{what} waits for its {_actor(spec.actor_id)}, which is {state}"
        if creation is None or creation.state in ENDED:
            found = self.creation_lease(spec.actor_id)
            return Cause("actor", f"{sentence}: {found}" if found else f"{sentence}.")
        return Cause("actor", f"{sentence}: {self.task(creation).sentence}")

    def creation_lease(self, actor_id: int) -> str:
        """How the request for an actor's (next) process stands."""
        lease = self.actor_leases.get(actor_id)
        if lease is None or lease.spec is None:
            return ""
        return self.lease(f"the next process of {_actor(actor_id)}", lease, lease.spec).sentence

    def ordering(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """At its actor, behind other calls."""
        calls = self.calls.get(spec.actor_id, [])
        running = sum(a.state in RUNNING for a in calls)
        before = sum(a.state == attempt.state and a.task_id < attempt.task_id for a in calls)
        return Cause(
            "actor",
            f"{_named(attempt)} is at its {_actor(spec.actor_id)} behind {plural(before, 'call')};"
            f" {plural(running, 'call')} of it run now.",
        )

    # ---- leases

    def lease_of(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause | None:
        """By the request that was made for it, or the first that its scheduling key waits for."""
        what = _named(attempt)
        if spec.kind == "ACTOR_CREATION_TASK":
            asked = self.actor_leases.get(spec.actor_id)
            return self.lease(what, asked, asked.spec) if asked and asked.spec else None
        queue = (spec.caller.worker_id, (spec.options.scheduling_class, spec.depth))
        same_key = [e for e in self.open_leases.get(queue, ()) if e.spec and _serves(e.spec, spec)]
        exact = next((e for e in same_key if e.spec and e.spec.task_id == spec.task_id), None)
        if exact is not None and exact.spec is not None:
            return self.lease(what, exact, exact.spec)
        first = _oldest(same_key) or self.in_front(queue)
        if first is None or first.spec is None:
            return None
        before = self.place.get(attempt.task_id, 0)
        if first in same_key and not before:
            return self.lease(what, first, first.spec)
        whose = "the first of them" if first in same_key else "the first of its class, another's,"
        kind, inner = self.lease(whose, first, first.spec)
        limit = self.request_limit()
        waiting = self.counts[spec.caller.worker_id, self.key(spec)]
        out = max(len(same_key), min(limit, waiting))
        sentence = (
            f"{what} is behind {plural(before, 'task')} in its owner's queue, for which"
            f" {plural(out, 'lease request')} {'is' if out == 1 else 'are'} out"
            f" (at most {limit}): {inner}"
        )
        return Cause("lease requests" if before >= out >= limit else kind, sentence)

    def in_front(self, queue: _Queue) -> LeaseEntry | None:
        """The oldest request of the same class at the raylet of this owner, made by another."""
        worker = self.now.workers.get(queue[0])
        return _oldest(
            lease
            for (_, scheduling_class), leases in self.open_leases.items()
            if scheduling_class == queue[1]
            for lease in leases
            if worker is None or lease.node_id == worker.node_id
        )

    def request_limit(self) -> int:
        """``max_pending_lease_requests_per_scheduling_category`` in effect."""
        asked = self.config.max_pending_lease_requests_per_scheduling_category
        alive = sum(node.alive for node in self.now.nodes.values())
        return asked if asked > 0 else max(10, alive)

    def owner_queue(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """Nothing is asked for: a leased worker will take it, or the owner is behind."""
        what = _named(attempt)
        queue = (spec.caller.worker_id, (spec.options.scheduling_class, spec.depth))
        mine = [e for e in self.granted.get(queue, ()) if e.spec and _serves(e.spec, spec)]
        if mine:
            return Cause(
                "lease requests",
                f"{what} waits in its owner's queue for one of {plural(len(mine), 'worker')}"
                " that the owner holds for tasks of its kind.",
            )
        owner = f"its owner, worker {spec.caller.worker_id} on {node_name(spec.caller.node_id)}"
        room = free_anywhere(self.now, spec.options.resources.units)
        return Cause(
            "owner",
            f"{what} has its arguments; where the lease request of {owner} stands is not recorded:"
            f" {room}.",
        )

    def at_gcs(self, attempt: TaskAttempt, spec: TaskSpec) -> Cause:
        """An actor's creation, which the GCS has taken over."""
        found = self.lease_of(attempt, spec)
        if found is not None:
            return found
        options, since_ns = spec.options, self.now.actors[spec.actor_id].since_ns
        needs = options.placement_resources or options.resources
        return Cause(
            "actor",
            f"{_named(attempt)} is with the GCS since {seconds(since_ns)}, which asks for a worker:"
            f" {free_anywhere(self.now, needs.units)}.",
        )

    def lease(self, what: str, lease: LeaseEntry, spec: LeaseSpec) -> Cause:
        """A request that waits, by its state."""
        where, since = node_name(lease.node_id), seconds(lease.since_ns)
        if lease.state == "INFEASIBLE":
            return Cause("infeasible", f"{what} can run on no node: {closest(self.now, spec)}.")
        waits = f"{what} waits on {where} since {since}"
        if lease.state == "PENDING_WORKER":
            workers = self.now.workers.values()
            starting = sum(w.state == "STARTING" and w.node_id == lease.node_id for w in workers)
            return Cause(
                "worker process",
                f"{what} has its resources on {where} and waits for a worker process since {since};"
                f" {plural(starting, 'process')} starting there now.",
            )
        if lease.state == "PENDING_ARGS":
            missing = missing_on(self.now, spec.dependencies, lease.node_id)
            arriving = fetching(self.now, missing)
            return Cause("arguments fetch", f"{waits} for its arguments to arrive{arriving}.")
        if lease.state == "PENDING_ARG_MEMORY":
            share = self.config.max_task_args_memory_fraction
            bytes_ = format_bytes(sum(size(self.now, ref.object_id) for ref in spec.dependencies))
            return Cause(
                "argument memory",
                f"{waits}: its arguments ({bytes_}) and those of the tasks that run there exceed"
                f" {share:.0%} of the object store.",
            )
        held = self.of_class(self.granted, spec, lease.node_id)
        if lease.state == "PENDING_CLASS_CAP" and self.blocked(held):
            return Cause("class cap", f"{waits}: {class_cap(self.now, lease, held, self.config)}.")
        behind = sum(
            (other.since_ns, other.lease_id) < (lease.since_ns, lease.lease_id)
            for other in self.of_class(self.open_leases, spec, lease.node_id)
        )
        place = f"behind {plural(behind, 'lease request')}" if behind else "the first"
        lack = shortage(spec, self.now.nodes.get(lease.node_id))
        return Cause(
            "raylet queue" if lease.state == "QUEUED" else "resources",
            f"{what} is {place} of its class at {where} since {since}; {lack}.",
        )

    def blocked(self, held: list[LeaseEntry]) -> bool:
        """Whether any of these workers waits in a get: else its CPU is what lacks, not the cap."""
        workers = self.now.workers
        return any(
            (worker := workers.get(lease.worker_id)) is not None and worker.state == "BLOCKED"
            for lease in held
        )

    def of_class(
        self, leases: dict[_Queue, list[LeaseEntry]], spec: LeaseSpec, node_id: NodeID
    ) -> list[LeaseEntry]:
        """Those of every owner at one raylet and of one scheduling class."""
        return [
            lease
            for (_, scheduling_class), queue in leases.items()
            if scheduling_class == spec.scheduling_class
            for lease in queue
            if lease.node_id == node_id
        ]


def _oldest(leases: Iterable[LeaseEntry]) -> LeaseEntry | None:
    return min(leases, key=lambda lease: (lease.start_ns, lease.lease_id), default=None)


def _serves(lease: LeaseSpec, spec: TaskSpec) -> bool:
    """Whether a worker under this lease would take the task: one scheduling key."""
    if lease.task_id == spec.task_id:
        return True
    refs = [arg.object_id for arg in spec.args if isinstance(arg, Ref)]
    return (
        lease.actor_id == spec.actor_id == 0
        and lease.owner.worker_id == spec.caller.worker_id
        and lease.scheduling_class == (spec.options.scheduling_class, spec.depth)
        and all(ref.object_id in refs for ref in lease.dependencies)
    )
