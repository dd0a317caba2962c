"""Placement groups, as a program asks for them.

Real counterpart: ``CoreWorker::CreatePlacementGroup``, ``WaitPlacementGroupReady``.

Not modelled: names looked up again after a failed creation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raysim.raycore.ids import NodeID, PlacementGroupID
from raysim.raycore.process import BundleStrategy
from raysim.raycore.protocol import Bundle, CreatePlacementGroup, WaitPlacementGroupUntilReady
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import LabelMatch, TaskError

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
        name: str,
        detached: bool,
        soft_target_node: NodeID | None,
        label_selectors: Sequence[tuple[LabelMatch, ...]],
        lead_ns: int,
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
        timeout_ns: int | None,
        lead_ns: int,
    ) -> None:
        """True when it is placed, False when it is removed or the time is over."""
        once = _Once(then)
        if timeout_ns is not None:
            self.core.after(lead_ns + timeout_ns, once.answered, False)
        message = WaitPlacementGroupUntilReady(group)
        self.core.call_gcs(message, once.answered, lead_ns=lead_ns)


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
