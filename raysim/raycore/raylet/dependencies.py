"""Plasma arguments of leases: pulled before the grant, in use by the raylet until the lease ends.

Real counterpart: ``src/ray/raylet/lease_dependency_manager.cc`` and the pinning of arguments in
``local_lease_manager.cc`` (``PinLeaseArgsIfMemoryAvailable``). Once the object manager says that
all are local, the raylet takes them into use itself, which also tells it how large they are; what
was evicted in between is pulled again. Bytes count once however many leases use an object.
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.kernel.component import Component, Failure
from raysim.raycore.ids import LeaseID, NodeID, ObjectID
from raysim.raycore.protocol import (
    AsyncGetObjects,
    CancelGetRequest,
    PlasmaGet,
    PlasmaRelease,
    PullStatus,
    object_manager,
    plasma,
)
from raysim.raycore.raylet.lease import Lease
from raysim.raycore.tasks import TaskError


class Dependencies:
    """Arguments of all leases of one node.

    Parameters
    ----------
    ready
        ``ready(lease)``: all its arguments are here and in use.
    """

    __slots__ = (
        "_in_use", "_object_manager", "_plasma", "_ready", "_room", "blocked", "granted_bytes",
    )  # fmt: skip

    def __init__(
        self, room: Component, node_id: NodeID, *, ready: Callable[[Lease], object]
    ) -> None:
        self._room = room
        self._plasma = plasma(node_id)
        self._object_manager = object_manager(node_id)
        self._ready = ready
        self._in_use: dict[ObjectID, int] = {}
        self.granted_bytes = 0
        """Arguments of granted leases, each object once."""
        self.blocked: dict[LeaseID, None] = {}
        """Leases whose pulls wait for room in the store; those of the others are under way."""

    def request(self, lease: Lease) -> None:
        """Have the arguments pulled; ``ready`` later, unless released before."""
        request = AsyncGetObjects(self._request_id(lease), lease.spec.dependencies, "TASK_ARGS")

        def pulled(answer: object) -> None:
            if lease.state == "PENDING_ARGS":
                # The owner's word that an object is lost is for the owner to act upon: it fails or
                # resubmits the task. The grant goes ahead, as Ray's does with an error object.
                if isinstance(answer, TaskError):
                    self._ready(lease)
                elif not isinstance(answer, Failure):
                    self._use(lease)

        self._room.call(self._object_manager, request, pulled)

    def told(self, m: PullStatus) -> None:
        """The object manager says whose pulls wait for room."""
        self.blocked.update(dict.fromkeys(m.leases_blocked))
        for lease_id in m.leases_unblocked:
            self.blocked.pop(lease_id, None)

    def _use(self, lease: Lease) -> None:
        ids = tuple(dict.fromkeys(ref.object_id for ref in lease.spec.dependencies))

        def got(payloads: object) -> None:
            if isinstance(payloads, Failure):
                return
            assert isinstance(payloads, tuple)
            here = {i: p.size_bytes for i, p in zip(ids, payloads, strict=True) if p is not None}
            lease.arg_bytes = here
            if lease.state != "PENDING_ARGS":
                self._release_uses(lease)
            elif len(here) < len(ids):
                self._release_uses(lease)
                self.request(lease)
            else:
                self._ready(lease)

        message = PlasmaGet(ids, self._room.address, timeout_ns=0)
        self._room.call(self._plasma, message, got)

    def fits(self, lease: Lease, limit_bytes: int) -> bool:
        """Whether it may be granted beside what is granted; one larger than all may always."""
        sizes = lease.arg_bytes
        if not sizes or limit_bytes <= 0 or sum(sizes.values()) > limit_bytes:
            return True
        more = sum(n for i, n in sizes.items() if i not in self._in_use)
        return self.granted_bytes + more <= limit_bytes

    def granted(self, lease: Lease) -> None:
        """Its arguments count now."""
        for object_id, n in (lease.arg_bytes or {}).items():
            users = self._in_use.get(object_id, 0)
            if not users:
                self.granted_bytes += n
            self._in_use[object_id] = users + 1

    def not_granted(self, lease: Lease) -> None:
        """They do not count any more."""
        for object_id, n in (lease.arg_bytes or {}).items():
            users = self._in_use.pop(object_id) - 1
            if users:
                self._in_use[object_id] = users
            else:
                self.granted_bytes -= n

    def pulled_no_more(self, lease: Lease) -> None:
        """The lease has its worker, or has gone: its pull request ends."""
        self._room.send(self._object_manager, CancelGetRequest(self._request_id(lease)))

    def release(self, lease: Lease) -> None:
        """The lease has ended: let go of its arguments."""
        if lease.arg_bytes:
            self._release_uses(lease)

    def _release_uses(self, lease: Lease) -> None:
        for object_id in lease.arg_bytes or ():
            self._room.send(self._plasma, PlasmaRelease(object_id, self._room.address))
        lease.arg_bytes = None

    def _request_id(self, lease: Lease) -> tuple[str, int]:
        return (self._room.address, lease.lease_id)
