"""``ray.experimental.locations``: which nodes have an object, and how large it is.

Real counterpart: ``python/ray/experimental/locations.py`` of ray 2.60, ``GetLocationFromOwner`` of
``core_worker.cc``: every owner is asked, this process too. What a process borrows it knows nothing
of without asking; in Ray, what came with its arguments.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.exceptions import GetTimeoutError
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.identifiers import NodeID
from raysim.rayapi.objects import ObjectRef
from raysim.raycore.protocol import Located
from raysim.units import NS_PER_MS


@program_call
def get_object_locations(
    obj_refs: list[ObjectRef], timeout_ms: int = -1
) -> dict[ObjectRef, dict[str, Any]]:
    """Nodes and size in bytes (None: not made yet) by reference, as the owners know them now.

    Raises
    ------
    RuntimeError
        The program is not connected.
    GetTimeoutError
        An owner did not answer within ``timeout_ms``; negative: it is waited for.
    """
    fiber = _connected()
    core, lead_ns = this_core(fiber), fiber.take_lead()
    refs = [ref._ref for ref in obj_refs]  # noqa: SLF001  (of the same package)

    def ask(then: Any) -> None:
        core.ask_locations(refs, then, lead_ns=lead_ns)
        if timeout_ms >= 0:
            core.after(lead_ns + timeout_ms * NS_PER_MS, then)

    found = fiber.block(ask) if obj_refs else {}
    if found is None:
        raise GetTimeoutError(f"Failed querying object locations within {timeout_ms} milliseconds.")
    return {ref: _told(found[ref.number]) for ref in obj_refs if ref.number in found}


@program_call
def get_local_object_locations(obj_refs: list[ObjectRef]) -> dict[ObjectRef, dict[str, Any]]:
    """The same, as far as this process knows without asking.

    Raises
    ------
    RuntimeError
        The program is not connected.
    """
    core = this_core(_connected())
    unknown = Located(0, (), spilled=False)
    found = [core.peek_locations(ref._ref) for ref in obj_refs]  # noqa: SLF001  (as above)
    return {ref: _told(at or unknown) for ref, at in zip(obj_refs, found, strict=True)}


def _connected() -> Fiber:
    fiber = HUB.current
    if fiber is None or fiber.process.core is None:
        raise RuntimeError("Ray hasn't been initialized.")
    return this_fiber()


def _told(where: Located) -> dict[str, Any]:
    return {
        "node_ids": [NodeID(node_id).hex() for node_id in where.node_ids],
        "object_size": where.object_size or None,
        "did_spill": where.spilled,
    }


__all__ = ["get_local_object_locations", "get_object_locations"]
