"""One lease request in a raylet, and the class of equal requests it queues with.

Real counterpart: ``internal::Work`` (``src/ray/raylet/scheduling/internal.h``) and
``SchedulingClassInfo`` (``local_lease_manager.h``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Literal

from raysim.kernel.component import Reply
from raysim.raycore.ids import LeaseID
from raysim.raycore.protocol import LeaseSpec, RequestWorkerLease
from raysim.raycore.resources import CPU, GPU, Allocation, ResourceSet
from raysim.raycore.tasks import InPlacementGroup, LabelMatch, NodeLabels, Strategy, TaskOptions

if TYPE_CHECKING:
    from raysim.raycore.raylet.worker_pool import Start, Worker

LeaseState = Literal[
    "NEW", "INFEASIBLE", "PENDING_ARGS", "PENDING_RESOURCES", "PENDING_WORKER", "GRANTED", "GONE"
]

NEVER_NS = 1 << 62
UNLIMITED = 1 << 62
_MANY_CLASSES = 4_096


class SchedulingClass:
    """Requests that are equal as far as scheduling can see, and their queues in this raylet."""

    __slots__ = (
        "bundle_index",
        "capacity",
        "cpu",
        "depth",
        "granted",
        "group",
        "infeasible",
        "next_update_ns",
        "options",
        "placement",
        "selector",
        "starting",
        "strategy",
        "stuck_at",
        "to_grant",
        "wants_gpu",
    )  # fmt: skip

    def __init__(self, spec: LeaseSpec, node_cpu: int) -> None:
        options = spec.options
        self.options = options
        self.depth = spec.depth
        self.placement: ResourceSet = spec.resources
        """Needed free to be placed; an actor may hold less afterwards (each lease its own)."""
        held = options.resources
        self.cpu = held.units.get(CPU, 0)
        self.wants_gpu = GPU in self.placement.units
        self.strategy: Strategy = options.strategy
        hard = options.strategy.hard if isinstance(options.strategy, NodeLabels) else ()
        self.selector: tuple[LabelMatch, ...] = options.label_selector + hard
        self.group = ""
        """Name of the placement group within which it runs."""
        self.bundle_index = -1
        if isinstance(options.strategy, InPlacementGroup):
            self.group = _group_name(held)
            self.bundle_index = options.strategy.bundle_index
        self.capacity = round(node_cpu / self.cpu) if self.cpu else UNLIMITED
        self.granted = 0
        """Leases granted, or waiting only for their worker."""
        self.starting = 0
        """Of those, waiting for a worker."""
        self.next_update_ns = NEVER_NS
        """At capacity: when one more may go."""
        self.to_grant: deque[Lease] | None = None
        self.infeasible: deque[Lease] | None = None
        self.stuck_at = -1
        """Version of the view at which no other node could take it."""

    @property
    def idle(self) -> bool:
        """Whether nothing of it is here."""
        return not (self.granted or self.to_grant or self.infeasible)


def _group_name(held: ResourceSet) -> str:
    """``0a`` of ``bundle_group_0a``, which every request within a group asks for."""
    wildcards = [name for name in held.units if name.startswith("bundle_group_")]
    return min(wildcards, key=len).removeprefix("bundle_group_") if wildcards else ""


class Lease:
    """One request, from its arrival until its worker is back."""

    __slots__ = (
        "allocation", "arg_bytes", "attempts", "blocked", "bundle", "granted_ns", "klass",
        "lease_id", "noted", "reply", "request", "spec", "start", "state", "worker",
    )  # fmt: skip

    def __init__(self, request: RequestWorkerLease, reply: Reply, klass: SchedulingClass) -> None:
        self.lease_id: LeaseID = request.lease_id
        self.request = request
        self.spec = request.spec
        self.reply = reply
        self.klass = klass
        self.state: LeaseState = "NEW"
        self.noted = ""
        """Its last state in the log."""
        self.allocation: Allocation | None = None
        self.bundle = -1
        """The bundle of its group that it runs in."""
        self.worker: Worker | None = None
        self.start: Start | None = None
        """The process being started for it."""
        self.attempts = 0
        """Worker starts that failed."""
        self.blocked = False
        """Its worker waits in get or wait, and has given its CPU back."""
        self.granted_ns = -1
        self.arg_bytes: dict[int, int] | None = None
        """Size of each plasma argument, in use by this raylet."""


class Classes:
    """All scheduling classes of one raylet."""

    __slots__ = ("_by_key", "_by_options", "_node_cpu")

    def __init__(self, node_cpu: int) -> None:
        self._node_cpu = node_cpu
        self._by_options: dict[tuple[TaskOptions, int], SchedulingClass] = {}
        self._by_key: dict[tuple[Any, ...], SchedulingClass] = {}

    def of(self, spec: LeaseSpec) -> SchedulingClass:
        """The class of a request."""
        klass = self._by_options.get((spec.options, spec.depth))
        if klass is None:
            if len(self._by_options) > _MANY_CLASSES:
                self._forget_idle()
            key = (spec.options.scheduling_class, spec.depth, spec.resources)
            klass = self._by_key.get(key)
            if klass is None:
                klass = self._by_key[key] = SchedulingClass(spec, self._node_cpu)
            self._by_options[spec.options, spec.depth] = klass
        return klass

    def all(self) -> list[SchedulingClass]:
        """In order of first appearance."""
        return list(self._by_key.values())

    def _forget_idle(self) -> None:
        self._by_options.clear()
        self._by_key = {key: k for key, k in self._by_key.items() if not k.idle}
