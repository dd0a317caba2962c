"""``ray.util``: what is emulated of it.

Real counterpart: ``python/ray/util/__init__.py`` of ray 2.60.
"""

from __future__ import annotations

import sys
from typing import Any

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.serialization import deregister, is_serializable, register
from raysim.rayapi.unsupported import getattr_of
from raysim.rayapi.util import actor_pool, helpers, queue, scheduling_strategies, state
from raysim.rayapi.util import placement_group as _groups
from raysim.rayapi.util.actor_pool import ActorPool
from raysim.rayapi.util.helpers import as_completed, map_unordered
from raysim.rayapi.util.marks import DeveloperAPI, PublicAPI
from raysim.rayapi.util.placement_group import (
    get_current_placement_group,
    get_placement_group,
    placement_group_table,
    remove_placement_group,
)

placement_group = _groups.placement_group  # the function, as in Ray: not the module


@program_call
def list_named_actors(all_namespaces: bool = False) -> list[Any]:
    """Names of live actors."""
    from raysim.rayapi.state import ask_gcs
    from raysim.raycore.protocol import GetAllActorInfo

    here = this_fiber().process.namespace
    found: list[Any] = []
    for row in ask_gcs(GetAllActorInfo()):
        actor = row.options.actor
        if not actor.name or row.state == "DEAD":
            continue
        if all_namespaces:
            found.append({"name": actor.name, "namespace": actor.namespace})
        elif actor.namespace == here:
            found.append(actor.name)
    return found


def get_node_ip_address(address: str = "") -> str:
    """Of the node the program runs on."""
    del address
    return this_fiber().process.ip


def get_node_instance_id() -> str:
    """None is known."""
    return ""


def register_serializer(cls: type, *, serializer: Any, deserializer: Any) -> None:
    """Pickle a class in another way."""
    register(cls, serializer=serializer, deserializer=deserializer)


def deregister_serializer(cls: type) -> None:
    """As before."""
    deregister(cls)


def inspect_serializability(
    base_obj: Any, name: str | None = None, depth: int = 3, print_file: Any = None
) -> tuple[bool, set[Any]]:
    """Whether a value can be pickled."""
    del depth
    error = is_serializable(base_obj)
    if error is None:
        return True, set()
    text = f"Checking Serializability of {base_obj!r}\n!!! FAIL serialization: {error}\n"
    (print_file or sys.stdout).write(text)
    return False, {name or getattr(base_obj, "__name__", repr(base_obj))}


_logged: dict[Any, None] = {}


def log_once(key: str) -> bool:
    """True the first time."""
    if key in _logged:
        return False
    _logged[key] = None
    return True


def disable_log_once_globally() -> None:
    """Nothing is logged here."""


def enable_periodic_logging() -> None:
    """Nothing is logged here."""


__getattr__ = getattr_of("ray.util")

__all__ = [
    "ActorPool", "DeveloperAPI", "PublicAPI", "actor_pool", "as_completed", "deregister_serializer",
    "disable_log_once_globally", "enable_periodic_logging", "get_current_placement_group",
    "get_node_instance_id", "get_node_ip_address", "get_placement_group", "helpers",
    "inspect_serializability", "list_named_actors", "log_once", "map_unordered",
    "placement_group", "placement_group_table", "queue", "register_serializer",
    "remove_placement_group", "scheduling_strategies", "state",
]  # fmt: skip
