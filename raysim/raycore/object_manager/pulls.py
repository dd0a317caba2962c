"""Which bundles of objects are being pulled, so that what arrives finds room.

Real counterpart: ``src/ray/object_manager/pull_manager.cc``: ``UpdatePullsBasedOnAvailableMemory``,
``ActivateNextBundlePullRequest``, ``DeactivateUntilMarginAvailable``. A bundle is all objects of
one lease's arguments, or of one get or wait. Pure bookkeeping: no messages, no clock.

Quota = bytes available in the store - (bytes of active bundles - those of them pinned already). GET
bundles are activated whatever the quota, after deactivating others; the rest only if they fit, or
if nothing else is active, so that something always moves.

A lease's bundle whose objects have all come counts as active until the raylet has a worker for it
and cancels the request. Simplified: it is not deactivated for others any more, since the raylet
uses its objects by then.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.ids import ObjectID, WorkerAddress
from raysim.raycore.protocol import PullPriority
from raysim.raycore.tasks import Ref

RequestID = tuple[str, int]


class Bundle:
    """One request."""

    __slots__ = (
        "active", "finishing", "missing", "priority", "pulls", "reply", "request_id", "unsized",
    )  # fmt: skip

    def __init__(self, request_id: RequestID, priority: PullPriority, reply: Any) -> None:
        self.request_id = request_id
        self.priority: PullPriority = priority
        self.reply = reply
        self.pulls: list[ObjectPull] = []
        self.missing = 0
        """Objects that are not local."""
        self.unsized = 0
        """Objects of unknown size; with any, it cannot be activated."""
        self.active = False
        self.finishing = False
        """Everything is here and being pinned or reserved."""


class ObjectPull:
    """One object that some bundle asks for."""

    __slots__ = (
        "active", "bundles", "expires_ns", "local", "next_pull_ns", "object_id", "owner",
        "pinned", "retries", "size",
    )  # fmt: skip

    def __init__(self, ref: Ref) -> None:
        self.object_id: ObjectID = ref.object_id
        self.owner: WorkerAddress = ref.owner
        self.size = -1
        """-1: not known yet."""
        self.local = False
        self.pinned = False
        """For the active bundles that want it."""
        self.bundles: dict[RequestID, Bundle] = {}
        self.active = 0
        """Active bundles that want it."""
        self.next_pull_ns = 0
        self.retries = 0
        self.expires_ns = -1
        """When it fails if no copy is known until then."""


class PullManager:
    """Three queues of bundles and what of them is active."""

    def __init__(self) -> None:
        self.bundles: dict[RequestID, Bundle] = {}
        self.pulls: dict[ObjectID, ObjectPull] = {}
        self.bytes_being_pulled = 0
        """Of active bundles, each object once."""
        self.bytes_pinned = 0
        """Of those, what has arrived and is pinned."""
        self.active = 0
        self.held = 0
        """Complete bundles of leases that wait for a worker."""
        self._queues: dict[PullPriority, dict[RequestID, Bundle]] = {
            "GET": {}, "WAIT": {}, "TASK_ARGS": {},
        }  # fmt: skip
        self._inactive: dict[PullPriority, dict[RequestID, Bundle]] = {
            "GET": {}, "WAIT": {}, "TASK_ARGS": {},
        }  # fmt: skip
        """Those that could be activated, in the order of their queue."""
        self.turned: dict[RequestID, None] = {}
        """Bundles of leases that wait for room, or did, since ``lease_news``."""
        self._told_blocked: dict[RequestID, None] = {}

    # ---- what is asked ---------------------------------------------------------------------------

    def add(self, bundle: Bundle, refs: tuple[Ref, ...]) -> list[ObjectPull]:
        """A new bundle; its objects that nobody asked for before."""
        new: list[ObjectPull] = []
        for ref in dict.fromkeys(refs):
            pull = self.pulls.get(ref.object_id)
            if pull is None:
                pull = self.pulls[ref.object_id] = ObjectPull(ref)
                new.append(pull)
            pull.bundles[bundle.request_id] = bundle
            bundle.pulls.append(pull)
            bundle.missing += not pull.local
            bundle.unsized += pull.size < 0
        self.bundles[bundle.request_id] = bundle
        self._queues[bundle.priority][bundle.request_id] = bundle
        if not bundle.unsized:
            self._wait(bundle)
        return new

    def remove(self, bundle: Bundle) -> tuple[list[ObjectPull], list[ObjectPull]]:
        """A bundle has ended: objects that no active bundle wants now, and that no bundle wants."""
        idle = self._deactivate(bundle) if bundle.active else []
        if self._inactive[bundle.priority].pop(bundle.request_id, None) is not None:
            self._turn(bundle)
        del self._queues[bundle.priority][bundle.request_id]
        del self.bundles[bundle.request_id]
        gone = []
        for pull in bundle.pulls:
            del pull.bundles[bundle.request_id]
            if not pull.bundles:
                del self.pulls[pull.object_id]
                gone.append(pull)
        return idle, gone

    def size_is(self, pull: ObjectPull, size_bytes: int) -> None:
        """The owner, or the store, has said how large it is."""
        if pull.size >= 0:
            return
        pull.size = size_bytes
        for bundle in pull.bundles.values():
            bundle.unsized -= 1
            if not bundle.unsized:
                self._wait(bundle)

    def is_here(self, pull: ObjectPull, *, local: bool) -> list[Bundle]:
        """It has become local, or is so no longer; bundles that are complete with it."""
        if pull.local == local:
            return []
        pull.local = local
        change = -1 if local else 1
        for bundle in pull.bundles.values():
            bundle.missing += change
        return [b for b in pull.bundles.values() if not b.missing]

    def pin(self, pull: ObjectPull, *, pinned: bool) -> None:
        """It was pinned for the active bundles, or is so no longer."""
        if pull.pinned != pinned:
            pull.pinned = pinned
            if pull.active:
                self.bytes_pinned += pull.size if pinned else -pull.size

    @property
    def blocked(self) -> bool:
        """Whether any bundle waits for room."""
        return any(self._inactive.values())

    def lease_news(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Leases whose bundles have begun to wait for room since the last news, and have ceased."""
        told, waiting = self._told_blocked, self._inactive["TASK_ARGS"]
        begun = [i for i in self.turned if i in waiting and i not in told]
        ceased = [i for i in self.turned if i in told and i not in waiting]
        self.turned.clear()
        told.update(dict.fromkeys(begun))
        for request_id in ceased:
            del told[request_id]
        return tuple(i[1] for i in begun), tuple(i[1] for i in ceased)

    def _turn(self, bundle: Bundle) -> None:
        if bundle.priority == "TASK_ARGS":
            self.turned[bundle.request_id] = None

    # ---- admission -------------------------------------------------------------------------------

    def remaining(self, available_bytes: int) -> int:
        """Quota left."""
        return available_bytes - (self.bytes_being_pulled - self.bytes_pinned)

    def update(self, available_bytes: int) -> tuple[list[ObjectPull], list[ObjectPull]]:
        """Activate and deactivate; objects to pull now, and objects whose pull is off."""
        on: dict[ObjectPull, None] = {}
        off: dict[ObjectPull, None] = {}

        def margin(priority: PullPriority, bytes_needed: int, keep: int = 0) -> None:
            queue = self._queues[priority]
            keep -= self.held
            if self.remaining(available_bytes) >= bytes_needed or self.active <= keep:
                return
            for bundle in reversed([b for b in queue.values() if b.active]):
                if self.remaining(available_bytes) >= bytes_needed or self.active <= keep:
                    return
                off.update(dict.fromkeys(self._deactivate(bundle)))
                self._wait(bundle)

        while self._inactive["GET"]:
            bundle = next(iter(self._inactive["GET"].values()))
            needed = self._new_bytes(bundle)
            margin("TASK_ARGS", needed)
            margin("WAIT", needed)
            on.update(dict.fromkeys(self._activate(bundle)))
        others: tuple[PullPriority, ...] = ("WAIT", "TASK_ARGS")
        for priority in others:
            while self._inactive[priority]:
                bundle = next(iter(self._inactive[priority].values()))
                needed = self._new_bytes(bundle)
                if priority == "WAIT":
                    margin("TASK_ARGS", needed)
                if self.active + self.held and needed > self.remaining(available_bytes):
                    break
                on.update(dict.fromkeys(self._activate(bundle)))
        margin("TASK_ARGS", 0, keep=1)
        margin("WAIT", 0, keep=1)
        return [p for p in on if p.active], [p for p in off if not p.active]

    def _new_bytes(self, bundle: Bundle) -> int:
        """What it adds to what is being pulled."""
        return sum(pull.size for pull in bundle.pulls if not pull.active)

    def _activate(self, bundle: Bundle) -> list[ObjectPull]:
        """Objects that were not active before."""
        del self._inactive[bundle.priority][bundle.request_id]
        self._turn(bundle)
        bundle.active = True
        self.active += 1
        started = []
        for pull in bundle.pulls:
            pull.active += 1
            if pull.active == 1:
                self.bytes_being_pulled += pull.size
                self.bytes_pinned += pull.size if pull.pinned else 0
                pull.next_pull_ns = pull.retries = 0
                started.append(pull)
        return started

    def _deactivate(self, bundle: Bundle) -> list[ObjectPull]:
        """Objects that no active bundle wants any more."""
        bundle.active = False
        self.active -= 1
        ended = []
        for pull in bundle.pulls:
            pull.active -= 1
            if not pull.active:
                self.bytes_being_pulled -= pull.size
                self.bytes_pinned -= pull.size if pull.pinned else 0
                ended.append(pull)
        return ended

    def _wait(self, bundle: Bundle) -> None:
        """Put it among those to activate, at its place in the queue."""
        inactive = self._inactive[bundle.priority]
        inactive[bundle.request_id] = bundle
        self._turn(bundle)
        queue = self._queues[bundle.priority]
        if next(reversed(queue)) != bundle.request_id and len(inactive) > 1:
            order = [request_id for request_id in queue if request_id in inactive]
            self._inactive[bundle.priority] = {i: inactive[i] for i in order}

    def wrong(self) -> str:
        """What breaks its laws now; empty when all is well."""
        active = [pull for pull in self.pulls.values() if pull.active]
        pulled = sum(pull.size for pull in active)
        pinned = sum(pull.size for pull in active if pull.pinned)
        if (pulled, pinned) != (self.bytes_being_pulled, self.bytes_pinned):
            return f"{pulled} bytes pulled, {pinned} pinned; counted {self.bytes_being_pulled}"
        for bundle in self.bundles.values():
            if bundle.missing != sum(not pull.local for pull in bundle.pulls):
                return f"{bundle.request_id} misses {bundle.missing}"
        if self.active != sum(bundle.active for bundle in self.bundles.values()):
            return f"{self.active} bundles counted as active"
        return ""
