"""``PlacementGroup.ready()``: a reference that resolves when the group is placed.

Real counterpart: ``AsyncWaitPlacementGroupReady`` of ``core_worker.cc``; older Ray submitted a tiny
task into the group, and so does this: what waits for the reference also waits for a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serialization import serialize
from raysim.raycore.ids import hex_id
from raysim.raycore.resources import NOTHING, within_group
from raysim.raycore.tasks import InPlacementGroup, RemoteFunction, TaskOptions

if TYPE_CHECKING:
    from raysim.rayapi.util.placement_group import PlacementGroup
    from raysim.raycore.running import RunningTask


def _answer(running: RunningTask) -> None:
    """Return the argument: the group."""
    running.finish([running.args[0]])  # type: ignore[list-item]


_READY = RemoteFunction(name="bundle_reservation_check_func", body=_answer)


@program_call
def ready_ref(group: PlacementGroup) -> ObjectRef:
    """Submit it."""
    fiber = this_fiber()
    core = this_core(fiber)
    number = group.id.number
    options = TaskOptions(
        function=_READY,
        resources=within_group(NOTHING, hex_id("placement_group", number), -1),
        strategy=InPlacementGroup(placement_group_id=number),
    )
    fiber.pay(core.costs.submit_task_ns)
    (ref,) = core.submit_task(options, [serialize(group)], lead_ns=fiber.lead_ns)
    return ObjectRef(ref, core)
