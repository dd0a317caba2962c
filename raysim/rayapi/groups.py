"""``PlacementGroup.ready()``: a reference that resolves when the group is placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serialization import serialize

if TYPE_CHECKING:
    from raysim.rayapi.util.placement_group import PlacementGroup


@program_call
def ready_ref(group: PlacementGroup) -> ObjectRef:
    """Ask the GCS; no task runs."""
    fiber = this_fiber()
    core = this_core(fiber)
    fiber.pay(core.first_value_ns())
    lead_ns = fiber.take_lead()
    return ObjectRef(core.groups.ready(group.id.number, serialize(group), lead_ns=lead_ns), core)
