"""Placement groups, as a program asks for them: ``process.PlacementGroups``.

Real counterpart: ``CoreWorker::CreatePlacementGroup``, ``WaitPlacementGroupReady`` and
``AsyncWaitPlacementGroupReady``; Ray before 2.5x ran a task in the group to see that it is there.

Not modelled: names looked up again after a failed creation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID, PlacementGroupID
from raysim.raycore.process import BundleStrategy
from raysim.raycore.protocol import (
    Bundle,
    CreatePlacementGroup,
    RemovePlacementGroup,
    WaitPlacementGroupUntilReady,
)
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch, Payload, Ref, TaskError

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker


class Groups:
    """Of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core

    def create(
        self,
        bundles: Sequence[ResourceSet],
        strategy: BundleStrategy,
        then: Callable[[PlacementGroupID | TaskError], object],
        *,
        name: str = "",
        detached: bool = False,
        soft_target_node: NodeID | None = None,
        label_selectors: Sequence[tuple[LabelMatch, ...]] = (),
        lead_ns: int = 0,
    ) -> PlacementGroupID:
        """Have the GCS create it."""
        core = self.core
        group = core.env.ids.placement_group(core.job_id)
        selectors = [*label_selectors, *[()] * (len(bundles) - len(label_selectors))]
        message = CreatePlacementGroup(
            group,
            tuple(Bundle(group, i, b, selectors[i]) for i, b in enumerate(bundles)),
            strategy, name, core.namespace, core.job_id, core.me, core.executor.actor_id, detached,
            soft_target_node,
        )  # fmt: skip
        core.call_gcs(message, _Created(group, then).answered, lead_ns=lead_ns)
        return group

    def wait(
        self,
        group: PlacementGroupID,
        then: Callable[[bool], object],
        *,
        timeout_ns: int | None = None,
        lead_ns: int = 0,
    ) -> None:
        """True when it is placed, False when it is removed or the time is over."""
        once = _Once(then)
        if timeout_ns is not None:
            self.core.after(lead_ns + timeout_ns, once.answered, False)
        message = WaitPlacementGroupUntilReady(group)
        self.core.call_gcs(message, once.answered, lead_ns=lead_ns)

    def ready(self, group: PlacementGroupID, value: Payload, *, lead_ns: int = 0) -> Ref:
        """An object of this process that is ``value`` once the group is placed."""
        core = self.core
        object_id = core.objects.new_put_id()
        record = core.references.own(object_id, 1, None)

        def answered(placed: bool) -> None:
            if object_id in core.references.table:
                gone = TaskError("TASK_PLACEMENT_GROUP_REMOVED")
                core.references.set_value(record, value if placed else gone)

        self.wait(group, answered, lead_ns=lead_ns)
        return Ref(object_id, core.me)

    def remove(
        self, group: PlacementGroupID, then: Callable[[object], object], *, lead_ns: int = 0
    ) -> None:
        """Have the GCS remove it."""
        self.core.call_gcs(RemovePlacementGroup(group), then, lead_ns=lead_ns)


class _Once:
    """The first answer counts."""

    __slots__ = ("then",)

    def __init__(self, then: Callable[[Any], object]) -> None:
        self.then: Callable[[Any], object] | None = then

    def answered(self, answer: Any) -> None:
        """It is placed, or time is over."""
        then, self.then = self.then, None
        if then is not None:
            then(answer)


class _Created:
    """A group's id, or why there is none."""

    __slots__ = ("group", "then")

    def __init__(self, group: PlacementGroupID, then: Callable[[Any], object]) -> None:
        self.group = group
        self.then = then

    def answered(self, answer: Any) -> None:
        """The GCS has persisted it, or refused."""
        self.then(answer if answer.__class__ is TaskError else self.group)
