"""What tasks and actors have in common when submitted: where they may run, their arguments.

Real counterpart: the second half of ``RemoteFunction._remote`` and ``ActorClass._remote``, and
``prepare_args_internal`` of ``_raylet.pyx``.

Arguments: none, or first a header that says which are keywords, then one value each. A top-level
reference goes as such; a value is inlined up to ``max_direct_call_object_size`` and while the total
is below ``task_rpc_inlined_bytes_limit``; a larger one is put into the object store first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.labels import matches
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.options import resources_of
from raysim.rayapi.serialization import dump_code, pickled_bytes, serialize
from raysim.rayapi.state import node_rows
from raysim.rayapi.util.placement_group import PlacementGroup, group_for
from raysim.rayapi.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from raysim.raycore.ids import hex_id
from raysim.raycore.resources import ResourceSet, within_group
from raysim.raycore.tasks import (
    Arg,
    InPlacementGroup,
    NodeAffinity,
    NodeLabels,
    Payload,
    RuntimeEnv,
    Strategy,
)
from raysim.raystate.names import node_labels

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber

_MARKER_BYTES = 13
"""Ray's marker before each positional argument."""

_POSITIONAL = tuple(Payload(_MARKER_BYTES * n, ()) for n in range(64))


NO_ARGUMENTS: tuple[list[Arg], list[ObjectRef]] = ([], [])
"""Not even a header."""


class Placement(NamedTuple):
    """Where it may run, and what it takes there."""

    resources: ResourceSet
    placement_resources: ResourceSet | None
    strategy: Strategy


def placement(
    fiber: Fiber,
    options: dict[str, Any],
    what: str,
    *,
    resources: dict[str, float] | None = None,
    to_be_placed: dict[str, float] | None = None,
) -> Placement:
    """Resources and strategy, renamed if they are in a placement group."""
    held = resources_of(options) if resources is None else resources
    said = options.get("scheduling_strategy")
    chosen: Any = said
    if said is None or isinstance(said, PlacementGroupSchedulingStrategy):
        chosen = _in_group(fiber, options, said, what, held, to_be_placed or {})
    request = ResourceSet.of(held)
    placed = ResourceSet.of(to_be_placed) if to_be_placed else None
    if isinstance(chosen, InPlacementGroup):
        group = hex_id("placement_group", chosen.placement_group_id)
        index = chosen.bundle_index
        return Placement(
            within_group(request, group, index),
            within_group(placed, group, index) if placed is not None else None,
            chosen,
        )
    return Placement(request, placed, _strategy(chosen))


def _strategy(said: Any) -> Strategy:
    if isinstance(said, NodeAffinitySchedulingStrategy):
        return NodeAffinity(
            node_id=said.node,
            soft=said.soft,
            spill_on_unavailable=said._spill_on_unavailable,  # noqa: SLF001  (Ray's own name)
            fail_on_unavailable=said._fail_on_unavailable,  # noqa: SLF001  (Ray's own name)
        )
    if isinstance(said, NodeLabelSchedulingStrategy):
        return NodeLabels(hard=said.hard, soft=said.soft)
    if said in (None, "DEFAULT"):
        return "DEFAULT"
    if said == "SPREAD":
        return "SPREAD"
    raise ValueError(
        f"Invalid scheduling_strategy value {said}. "
        'Valid values are ["DEFAULT" | "SPREAD" | PlacementGroupSchedulingStrategy | '
        "NodeAffinitySchedulingStrategy]"
    )


def _in_group(
    fiber: Fiber,
    options: dict[str, Any],
    said: PlacementGroupSchedulingStrategy | None,
    what: str,
    held: dict[str, float],
    to_be_placed: dict[str, float],
) -> InPlacementGroup | None:
    group: Any = options.get("placement_group", "default")
    index = options.get("placement_group_bundle_index", -1)
    capture = options.get("placement_group_capture_child_tasks")
    if said is not None:
        group = said.placement_group
        index = said.placement_group_bundle_index
        capture = said.placement_group_capture_child_tasks
    inherited = captured_group(fiber)
    if capture is None:
        capture = inherited is not None and inherited.capture_child_tasks
    if group == "default":
        parent = PlacementGroup(inherited.placement_group_id) if inherited else None
        group = parent if capture else None
    found = group_for(group, index, held, to_be_placed, what)
    if found is None:
        return None
    return InPlacementGroup(
        placement_group_id=found.id.number, bundle_index=index, capture_child_tasks=bool(capture)
    )


def captured_group(fiber: Fiber) -> InPlacementGroup | None:
    """The placement group the running task or actor is in."""
    state = fiber.process
    options = state.actor.creation_options if state.actor is not None else None
    if options is None and fiber.running is not None:
        options = fiber.running.spec.options
    strategy = options.strategy if options is not None else None
    return strategy if isinstance(strategy, InPlacementGroup) else None


def label_selector(options: dict[str, Any]) -> Any:
    """``label_selector=`` as the scheduler reads it.

    Of ``fallback_strategy=`` the first that some node meets now, where none meets the selector; a
    node that meets it and is busy is waited for.
    """
    wanted = matches(options.get("label_selector"))
    others = options.get("fallback_strategy")
    if not others:
        return wanted
    labels = [node_labels(row) for row in node_rows() if row.state != "DEAD"]
    choices = [wanted, *(matches(other.get("label_selector")) for other in others)]
    there = (c for c in choices if any(all(m.matches(of) for m in c) for of in labels))
    return next(there, wanted)


def depends_on_caller(options: dict[str, Any]) -> bool:
    """Whether the placement may differ from caller to caller: it captures a placement group."""
    return options.get("scheduling_strategy") is None and options.get("placement_group") in (
        None,
        "default",
    )


def runtime_env(fiber: Fiber, given: Any) -> RuntimeEnv | None:
    """The environment of a task or actor: its own over its parent's."""
    from raysim.rayapi.runtime_env import check_places, described, validate

    own = dict(given or {})
    validate(own)
    check_places(given or {})
    whole = {**fiber.process.runtime_env, **own}
    env_vars = {**fiber.process.runtime_env.get("env_vars", {}), **own.get("env_vars", {})}
    if env_vars:
        whole["env_vars"] = env_vars
    if not whole:
        return None
    return described(whole)


def arguments(
    fiber: Fiber, args: tuple[Any, ...], kwargs: dict[str, Any], what: str
) -> tuple[list[Arg], list[ObjectRef]]:
    """Arguments on their way, and references to hold until the task is submitted."""
    core = fiber.process.core
    assert core is not None
    fiber.lead_ns += core.first_value_ns()
    if not args and not kwargs:
        return NO_ARGUMENTS
    config, costs = core.config, core.costs
    count = len(args)
    header = _POSITIONAL[count] if not kwargs and count < 64 else Payload(
        _MARKER_BYTES * count + sum(map(len, kwargs)), tuple(kwargs)
    )  # fmt: skip
    found: list[Arg] = [header]
    held: list[ObjectRef] = []
    inlined = 0
    for value in (*args, *kwargs.values()) if kwargs else args:
        if value.__class__ is ObjectRef:
            found.append(value._ref)  # noqa: SLF001  (an ObjectRef is this package's own)
            continue
        try:
            payload = serialize(value)
        except TypeError as error:
            raise TypeError(
                f"Could not serialize the argument {value!r} for a task or actor {what}:\n{error}"
            ) from error
        except ValueError as error:
            if getattr(value, "is_no_argument", False):  # a result of a compiled graph
                kind = type(value).__name__
                raise TypeError(f"{kind} cannot be used as Ray task/actor argument.") from error
            raise
        pickled = pickled_bytes(payload)
        if pickled:
            fiber.lead_ns += round(pickled / costs.serialize_bytes_per_s * 1e9)
        size = payload.size_bytes
        if size <= config.max_direct_call_object_size and (
            inlined + size <= config.task_rpc_inlined_bytes_limit
        ):
            inlined += size
            found.append(payload)
        else:
            fiber.lead_ns += costs.put_ns
            ref = put_payload(fiber, payload)
            held.append(ref)
            found.append(ref._ref)  # noqa: SLF001  (an ObjectRef is this package's own)
    fiber.lead_ns += costs.per_arg_ns * (len(found) - 1)
    if inlined:
        fiber.lead_ns += costs.submit_args_ns
    return found, held


def put_payload(fiber: Fiber, payload: Payload) -> ObjectRef:
    """Put a value and wait until it is there."""
    core = fiber.process.core
    assert core is not None
    refs = []
    lead_ns = fiber.take_lead()
    error = fiber.block(
        lambda then: refs.append(ObjectRef(core.put(payload, then, lead_ns=lead_ns), core))
    )
    if error is not None:
        raise_error(exception_of(error, refs[0].hex()))
    return refs[0]


def module_of(thing: Any) -> str:
    """Its module; of the script itself, the file's name."""
    module: str = thing.__module__
    if module != "__main__":
        return module
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if file else module


def dump_named(thing: Any, what: str) -> bytes:
    """Pickle a function or class of a program."""
    try:
        return dump_code(thing)
    except TypeError as error:
        raise TypeError(f"Could not serialize the {what}:\n{error}") from error


def default_max_retries() -> int:
    """``RAY_TASK_MAX_RETRIES``, or 3."""
    return int(os.environ.get("RAY_TASK_MAX_RETRIES", "3"))
