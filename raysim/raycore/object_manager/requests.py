"""Requests for objects: bundles from arrival to answer, and the pulls they cause.

Real counterpart: ``src/ray/object_manager/pull_manager.cc`` (``Pull``, ``OnLocationChange``,
``TryToMakeObjectLocal``, ``Tick``). ``pulls`` decides which bundles are active; here their objects
are located, asked for, asked for again, pinned as they come, and the requests answered.

Ray looks at everything each ``object_manager_timer_freq_ms``, and samples the room in the store.
Here a tick happens only if something is due or the room has changed, and what happens to requests
between ticks finds the room as it is, not as it was at the last tick.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from raysim.kernel.clock import Handle
from raysim.kernel.component import Failure, Reply
from raysim.raycore.ids import NodeID, ObjectID, WorkerAddress
from raysim.raycore.object_manager.directory import ObjectDirectory
from raysim.raycore.object_manager.pulls import Bundle, ObjectPull, PullManager, RequestID
from raysim.raycore.protocol import (
    AsyncGetObjects,
    GetStoreUsage,
    ObjectLocations,
    PlasmaReserve,
    Pull,
    StoreUsage,
    object_manager,
)
from raysim.raycore.tasks import TaskError
from raysim.units import NS_PER_MS

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import ObjectManager

MOST_RETRIES = 10
"""After so many, the wait for a pull doubles no more (``pull_manager.cc``)."""


class Requests:
    """What processes of this node wait for."""

    def __init__(self, room: ObjectManager) -> None:
        config = room.env.config
        self.room = room
        self.pulls = PullManager()
        self.directory: ObjectDirectory = room.directory
        self.held: dict[RequestID, list[ObjectID]] = {}
        """Arguments of leases, pinned until cancelled."""
        self._tick_ns = config.object_manager_timer_freq_ms * NS_PER_MS
        self._retry_ns = config.object_manager_pull_timeout_ms * NS_PER_MS
        self._fail_ns = config.fetch_fail_timeout_milliseconds * NS_PER_MS
        self._available: int | None = None
        """Of the store, as last sampled; None: not known."""
        self._asking = False
        self._stale = False
        self._due: list[tuple[int, ObjectID]] = []
        self._tick: Handle | None = None
        self._tick_at_ns = -1
        self._draws = room.sim.rng(f"{room.address}/source")

    def get(self, m: AsyncGetObjects, reply: Reply) -> None:
        """Get these here."""
        if m.request_id in self.pulls.bundles or m.request_id in self.held:
            self.cancel(m.request_id)
        for ref in m.refs:
            if (
                ref.owner.worker_id in self.room.dead_owners
                or ref.owner.node_id in self.room.dead_nodes
            ):
                reply(owner_died(ref.object_id, ref.owner))
                return
        bundle = Bundle(m.request_id, m.priority, reply)
        for pull in self.pulls.add(bundle, m.refs):
            local = self.room.local.get(pull.object_id)
            if local is not None:
                self.pulls.is_here(pull, local=True)
                self.pulls.size_is(pull, local.size)
            if local is None or m.priority == "TASK_ARGS":
                self._locate(pull)
        if not bundle.missing:
            self._finish(bundle)
        else:
            self._update()

    def cancel(self, request_id: RequestID) -> None:
        """Not needed any more."""
        bundle = self.pulls.bundles.get(request_id)
        if bundle is not None:
            self._finished(bundle, TaskError("TASK_CANCELLED", "the request was cancelled"))
        held = self.held.pop(request_id, None)
        if held is not None:
            self.pulls.held -= 1
            for object_id in held:
                self.room.unpin(object_id)
            self._update()

    def _finish(self, bundle: Bundle) -> None:
        """All its objects are local: pin or reserve them, then answer."""
        if bundle.finishing:
            return
        bundle.finishing = True
        ids = [pull.object_id for pull in bundle.pulls]
        if bundle.priority == "WAIT":
            self._finished(bundle, None)
        elif bundle.priority == "GET":
            self.room.call(
                self.room.plasma,
                PlasmaReserve(tuple(ids), bundle.request_id[0]),
                then=partial(self._reserved, bundle),
            )
        else:
            state: list[Any] = [len(ids), []]
            for object_id in ids:
                self.room.pin(object_id, partial(self._argument_pinned, bundle, object_id, state))
            if not ids:
                self._finished(bundle, None)

    def _reserved(self, bundle: Bundle, answer: Any) -> None:
        """Of a GET: kept for the worker that asked; not if one was evicted in this instant."""
        bundle.finishing = False
        if self.pulls.bundles.get(bundle.request_id) is not bundle:
            return
        if not isinstance(answer, Failure) and all(answer):
            self._finished(bundle, None)
        else:
            self._check_complete(bundle)

    def _argument_pinned(
        self, bundle: Bundle, object_id: ObjectID, state: list[Any],
        pinned: bool,
    ) -> None:  # fmt: skip
        state[0] -= 1
        if pinned:
            state[1].append(object_id)
        if state[0]:
            return
        bundle.finishing = False
        if self.pulls.bundles.get(bundle.request_id) is bundle:
            if len(state[1]) == len(bundle.pulls):
                self.held[bundle.request_id] = state[1]
                self.pulls.held += 1
                self._finished(bundle, None)
                return
            self._check_complete(bundle)
        for other in state[1]:
            self.room.unpin(other)

    def _check_complete(self, bundle: Bundle) -> None:
        """One of its objects was evicted while it was finishing: plasma's note says so now."""
        if bundle.missing:
            self._update()
        else:
            self.room.after(0, self._finish_if_there, bundle)

    def _finish_if_there(self, bundle: Bundle) -> None:
        if self.pulls.bundles.get(bundle.request_id) is bundle and not bundle.missing:
            self._finish(bundle)

    def _finished(self, bundle: Bundle, answer: TaskError | None) -> None:
        bundle.reply(answer)
        self._end(bundle)

    def _end(self, bundle: Bundle) -> None:
        idle, gone = self.pulls.remove(bundle)
        for pull in idle:
            self._stop(pull)
        for pull in gone:
            self.directory.unsubscribe(pull.object_id)
        self._update()

    # ---- pulling ---------------------------------------------------------------------------------

    def _locate(self, pull: ObjectPull) -> None:
        """Ask its owner where it is: of what is missing, and of a lease's arguments in any case."""
        self.directory.subscribe(pull.object_id, pull.owner)

    def locations_changed(self, m: ObjectLocations) -> None:
        """An owner's news."""
        pull = self.pulls.pulls.get(m.object_id)
        if pull is None or not self.directory.heard(m) or pull.local:
            return
        if m.ref_removed:
            freed = TaskError("OBJECT_FREED", f"object {m.object_id} was freed")
            self._fail(pull, m.error or freed)
            return
        there = bool(m.node_ids) or bool(m.spilled_url) or m.object_id in self.room.spills.spilled
        if there:
            self.pulls.size_is(pull, m.object_size)
        if there or m.pending_creation:
            pull.expires_ns = -1
        elif pull.expires_ns < 0:
            pull.expires_ns = self.room.now_ns + self._fail_ns
            self._schedule(pull.expires_ns, pull)
        self._update()
        self._try_pull(pull)

    def owner_refused(self, object_id: ObjectID) -> None:
        """The owner's process is gone."""
        pull = self.pulls.pulls.get(object_id)
        if pull is not None and not pull.local:
            self._fail(pull, owner_died(object_id, pull.owner))

    def _fail(self, pull: ObjectPull, error: TaskError) -> None:
        """Every request for it ends with the error."""
        for bundle in list(pull.bundles.values()):
            self._finished(bundle, error)

    def _update(self) -> None:
        """Activate and deactivate bundles; ask for the store's room first, if it is not known."""
        if not self.pulls.bundles:
            if self.pulls.turned:
                self.room.status_changed()
            return
        if self._available is None:
            if not self._asking:
                self._asking = True
                self.room.call(self.room.plasma, GetStoreUsage(), then=self._sampled)
            return
        on, off = self.pulls.update(self._available)
        for pull in off:
            self._stop(pull)
        for pull in on:
            if pull.local:
                self.room.pin(pull.object_id, partial(self._pull_pinned, pull))
            elif not self.room.receiver.receives(pull.object_id):
                self._try_pull(pull)
        self.room.status_changed()

    def _sampled(self, answer: Any) -> None:
        self._asking = False
        if isinstance(answer, StoreUsage):
            self._available = answer.available_bytes
            self._update()

    def _try_pull(self, pull: ObjectPull) -> None:
        """Ask one holder for it, or restore it; if it is due."""
        now_ns, object_id = self.room.now_ns, pull.object_id
        if not pull.active or pull.local or now_ns < pull.next_pull_ns:
            return
        known = self.directory.locations.get(object_id)
        here, dead = self.room.node_id, self.room.dead_nodes
        holders = [n for n in known.node_ids if n != here and n not in dead] if known else []
        if holders:
            chosen = int(self._draws.integers(len(holders))) if len(holders) > 1 else 0
            self._ask(holders[chosen], object_id)
        elif object_id in self.room.spills.spilled:
            self.room.spills.restore(object_id)
        elif known and known.spilled_url and known.spilled_node not in (-1, here):
            self._ask(known.spilled_node, object_id)
        else:
            return
        pull.next_pull_ns = now_ns + (self._retry_ns << pull.retries)
        pull.retries = min(pull.retries + 1, MOST_RETRIES)
        self._schedule(pull.next_pull_ns, pull)

    def _ask(self, node_id: NodeID, object_id: ObjectID) -> None:
        room = self.room
        through = room.pushes.receive_threads
        room.send(object_manager(node_id), Pull(object_id, room.node_id, through))

    def arrived(self, object_id: ObjectID, size_bytes: int) -> None:
        """An object is here."""
        pull = self.pulls.pulls.get(object_id)
        if pull is None:
            return
        self.directory.unsubscribe(object_id)
        self.pulls.size_is(pull, size_bytes)
        if pull.active and not pull.pinned:
            self.room.pin(object_id, partial(self._pull_pinned, pull))
        for bundle in self.pulls.is_here(pull, local=True):
            self._finish(bundle)
        self._update()

    def left(self, object_id: ObjectID) -> None:
        """An object is here no more."""
        pull = self.pulls.pulls.get(object_id)
        if pull is not None and pull.local:
            self.pulls.is_here(pull, local=False)
            pull.next_pull_ns = 0
            self.directory.unsubscribe(object_id)  # to hear at once where else it is
            self._locate(pull)

    def _pull_pinned(self, pull: ObjectPull, pinned: bool) -> None:
        if not pinned:
            return
        if pull.active and not pull.pinned:
            self.pulls.pin(pull, pinned=True)
            self._update()
        else:
            self.room.unpin(pull.object_id)

    def wants(self, object_id: ObjectID) -> bool:
        """Whether an active bundle waits for it."""
        pull = self.pulls.pulls.get(object_id)
        return pull is not None and pull.active > 0 and not pull.local

    def _stop(self, pull: ObjectPull) -> None:
        """No active bundle wants it any more."""
        if pull.pinned:
            pull.pinned = False
            self.room.unpin(pull.object_id)
        elif not pull.local:
            self.room.receiver.cancel(pull.object_id)

    # ---- time ------------------------------------------------------------------------------------

    def store_changed(self) -> None:
        """The room in the store has changed since it was sampled."""
        if self.pulls.bundles:
            self._stale = True
            self._arm()
        self._available = None

    def _schedule(self, due_ns: int, pull: ObjectPull) -> None:
        heappush(self._due, (due_ns, pull.object_id))
        self._arm()

    def _arm(self) -> None:
        """Look again at the first of Ray's ticks at which something is due."""
        room, due = self.room, self._due
        while due and due[0][1] not in self.pulls.pulls:
            heappop(due)
        if not due and not self._stale:
            return
        now_ns = room.now_ns
        soonest_ns = now_ns + 1 if self._stale else max(due[0][0], now_ns + 1)
        ticks = -(-(soonest_ns - room.start_ns) // self._tick_ns)
        at_ns = room.start_ns + ticks * self._tick_ns
        if self._tick is not None:
            if self._tick_at_ns <= at_ns:
                return
            room.sim.cancel(self._tick)
        self._tick_at_ns = at_ns
        self._tick = room.after(at_ns - now_ns, self._ticked)

    def _ticked(self, _: None) -> None:
        self._tick = None
        now_ns = self.room.now_ns
        if self._stale:
            self._stale = False
            self._update()
        due = self._due
        while due and due[0][0] <= now_ns:
            pull = self.pulls.pulls.get(heappop(due)[1])
            if pull is None or pull.local:
                continue
            if 0 <= pull.expires_ns <= now_ns:
                text = f"no copy of object {pull.object_id} was known for {self._fail_ns} ns"
                self._fail(pull, TaskError("OBJECT_FETCH_TIMED_OUT", text))
            else:
                self._try_pull(pull)
        self._arm()

    # ---- deaths ----------------------------------------------------------------------------------

    def owners_died(self) -> None:
        """Requests for objects whose owner is known to be dead end."""
        owners, nodes = self.room.dead_owners, self.room.dead_nodes
        for pull in list(self.pulls.pulls.values()):
            if pull.owner.worker_id in owners or pull.owner.node_id in nodes:
                self._fail(pull, owner_died(pull.object_id, pull.owner))

    def client_gone(self, client: str) -> None:
        """Requests of a process that has ended."""
        for request_id in [*self.pulls.bundles, *self.held]:
            if request_id[0] == client:
                self.cancel(request_id)


def owner_died(object_id: ObjectID, owner: WorkerAddress) -> TaskError:
    """What a reader of an object gets when its owner is dead."""
    return TaskError(
        "OWNER_DIED",
        f"The object's owner has exited: object {object_id} of worker {owner.worker_id}"
        f" on node {owner.node_id}",
    )
