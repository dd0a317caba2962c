"""Options of tasks, actors and methods: which there are, their types, and what is wrong with one.

Real counterpart: ``python/ray/_common/ray_option_utils.py`` of ray 2.60, with its error types and
messages, since programs and tests match on them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

from raysim.rayapi.labels import wrong_fallback, wrong_selector
from raysim.rayapi.util.placement_group import PlacementGroup
from raysim.rayapi.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

_NONE = type(None)
ACCELERATORS = ("GPU", "neuron_cores", "TPU", "NPU", "HPU", "RBLN", "FURIOSA", "TTNPU", "MBLT")


class Option(NamedTuple):
    """One keyword."""

    types: type | tuple[type, ...] | None = None
    wrong: Callable[[Any], str | None] | None = None
    default: Any = None

    def validate(self, keyword: str, value: Any) -> None:
        """Raise if the value will not do."""
        if self.types is not None and not isinstance(value, self.types):
            raise TypeError(
                f"The type of keyword '{keyword}' must be {self.types}, "
                f"but received type {type(value)}"
            )
        message = self.wrong(value) if self.wrong is not None else None
        if message:
            raise ValueError(message)


def _count(name: str, *, infinite: bool = True, default: Any = None) -> Option:
    lowest = -1 if infinite else 0
    accepts = (
        "None, 0, -1 or a positive integer, where -1 represents infinity."
        if infinite
        else "None, 0 or a positive integer."
    )

    def wrong(value: Any) -> str | None:
        if value is None or value >= lowest:
            return None
        return f"The keyword '{name}' only accepts {accepts}"

    return Option((int, _NONE), wrong, default)


def wrong_quantity(name: str, quantity: float | None) -> str | None:
    """What is wrong with a resource's quantity."""
    if quantity is None:
        return None
    if quantity < 0:
        return f"The quantity of resource {name} cannot be negative"
    if isinstance(quantity, float) and quantity != 0.0 and int(quantity * 10_000) == 0:
        return (
            f"The precision of the fractional quantity of resource {name} cannot go beyond 0.0001"
        )
    resource = "GPU" if name == "num_gpus" else name
    if resource == "TPU" and quantity not in (1, 2, 4, 8):
        return (
            f"The number of requested 'TPU' was set to {quantity} which is not a supported chip "
            "configuration. Supported configs: (1, 2, 4, 8)"
        )
    if not isinstance(quantity, float) or quantity.is_integer():
        return None
    if resource in ("neuron_cores", "HPU", "RBLN"):
        return (
            f"{resource} resource quantity must be whole numbers. The specified quantity "
            f"{quantity} is invalid."
        )
    if resource == "TTNPU":
        return f"TTNPU resource quantity ({quantity}) must be an integer."
    maker = {"FURIOSA": "Furiosa", "MBLT": "Mobilint"}.get(resource)
    if maker is None:
        return None
    return (
        f"{resource} resource quantity must be a whole number. {maker} NPUs do not support "
        f"fractional resource sharing. The specified quantity {quantity} is invalid."
    )


def _quantity(name: str, default: Any = None) -> Option:
    return Option((float, int, _NONE), lambda value: wrong_quantity(name, value), default)


def _wrong_resources(resources: dict[str, float] | None) -> str | None:
    if resources is None:
        return None
    if "CPU" in resources or "GPU" in resources:
        return (
            "Use the 'num_cpus' and 'num_gpus' keyword instead of 'CPU' and 'GPU' "
            "in 'resources' keyword"
        )
    for name, quantity in resources.items():
        message = wrong_quantity(name, quantity)
        if message:
            return message
    return None


def _is_exception(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _wrong_retry(value: Any) -> str | None:
    if isinstance(value, bool) or all(_is_exception(v) for v in value):
        return None
    return "retry_exceptions must be either a boolean or a list of exceptions"


def _wrong_num_returns(value: Any) -> str | None:
    if value is None or value in ("dynamic", "streaming") or value >= 0:
        return None
    return (
        "Default None. When None is passed, The default value is 1 for a task and actor task, and "
        "'streaming' for generator tasks and generator actor tasks. The keyword 'num_returns' only "
        "accepts None, a non-negative integer, 'streaming' (for generators), or 'dynamic'. "
        "'dynamic' flag will be deprecated in the future, and it is recommended to use "
        "'streaming' instead."
    )


def _wrong_backpressure(value: Any) -> str | None:
    if value != 0:
        return None
    return (
        "_generator_backpressure_num_objects=0 is not allowed. Use a value > 0. If the value is "
        "equal to 1, the behavior is identical to Python generator (generator 1 object whenever "
        "`next` is called). Use -1 to disable this feature. "
    )


def _wrong_actor_backpressure(value: Any) -> str | None:
    if value is None or value > 0 or value == -1:
        return None
    return (
        "_actor_generator_backpressure_num_objects must be > 0 to cap the actor's total unconsumed "
        f"generator objects, or -1 to disable. Got {value}."
    )


def _wrong_lifetime(value: Any) -> str | None:
    if value in (None, "detached", "non_detached"):
        return None
    return "actor `lifetime` argument must be one of 'detached', 'non_detached' and 'None'."


def _wrong_per_yield(value: Any) -> str | None:
    if value is None or value > 0:
        return None
    return (
        "_num_objects_per_yield is a private streaming generator option that must be set to a "
        "positive integer."
    )


COMMON: dict[str, Option] = {
    "label_selector": Option((dict, _NONE), wrong_selector),
    "fallback_strategy": Option((list, _NONE), wrong_fallback),
    "accelerator_type": Option((str, _NONE)),
    "memory": _quantity("memory"),
    "name": Option((str, _NONE)),
    "num_cpus": _quantity("num_cpus"),
    "num_gpus": _quantity("num_gpus"),
    "object_store_memory": _count("object_store_memory", infinite=False),
    "placement_group": Option((_NONE, str, PlacementGroup), default="default"),
    "placement_group_bundle_index": Option(int, default=-1),
    "placement_group_capture_child_tasks": Option((bool, _NONE)),
    "resources": Option((dict, _NONE), _wrong_resources),
    "runtime_env": Option((dict, _NONE)),
    "scheduling_strategy": Option(
        (
            _NONE, str, PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy,
            NodeLabelSchedulingStrategy,
        )
    ),
    "enable_task_events": Option(bool, default=True),
    "_labels": Option((dict, _NONE)),
}  # fmt: skip

_TASK_ONLY: dict[str, Option] = {
    "max_calls": _count("max_calls", infinite=False, default=0),
    "max_retries": _count("max_retries", default=3),
    "num_cpus": _quantity("num_cpus", default=1),
    "num_returns": Option((int, str, _NONE), _wrong_num_returns),
    "object_store_memory": Option(
        (int, _NONE),
        lambda value: (
            None if value is None else "Setting 'object_store_memory' is not implemented for tasks"
        ),
    ),
    "retry_exceptions": Option((bool, list, tuple), _wrong_retry, default=False),
    "_generator_backpressure_num_objects": Option((int, _NONE), _wrong_backpressure),
    "_num_objects_per_yield": Option((int, _NONE), _wrong_per_yield, default=1),
}

_ACTOR_ONLY: dict[str, Option] = {
    "concurrency_groups": Option((list, dict, _NONE)),
    "enable_tensor_transport": Option((bool, _NONE)),
    "lifetime": Option((str, _NONE), _wrong_lifetime),
    "max_concurrency": _count("max_concurrency", infinite=False),
    "max_restarts": _count("max_restarts", default=0),
    "max_task_retries": _count("max_task_retries", default=0),
    "max_pending_calls": _count("max_pending_calls", default=-1),
    "namespace": Option((str, _NONE)),
    "get_if_exists": Option(bool, default=False),
    "allow_out_of_order_execution": Option((bool, _NONE)),
    "_actor_generator_backpressure_num_objects": Option((int, _NONE), _wrong_actor_backpressure),
}

VALID = {**_TASK_ONLY, **_ACTOR_ONLY, **COMMON}
TASK = {**COMMON, **_TASK_ONLY}
ACTOR = {**COMMON, **_ACTOR_ONLY}

DECORATOR_ERROR = (
    "The @ray.remote decorator must be applied either with no arguments and no parentheses, for "
    "example '@ray.remote', or it must be applied using some of the arguments in the list "
    f"{list(VALID)}, for example "
    "'@ray.remote(num_returns=2, resources={\"CustomResource\": 1})'."
)


def _check_one_way_to_say_group(options: dict[str, Any]) -> None:
    group = options.get("placement_group", "default")
    if group not in ("default", None) and options.get("scheduling_strategy") is not None:
        raise ValueError(
            "Placement groups should be specified via the scheduling_strategy option. "
            "The placement_group option is deprecated."
        )


def validate_task(
    options: dict[str, Any], *, in_options: bool, is_generator: bool | None = None
) -> None:
    """Raise what Ray raises for options of a remote function."""
    for keyword, value in options.items():
        if keyword not in TASK:
            raise ValueError(
                f"Invalid option keyword {keyword} for remote functions. "
                f"Valid ones are {list(TASK)}."
            )
        TASK[keyword].validate(keyword, value)
    if in_options and "max_calls" in options:
        raise ValueError("Setting 'max_calls' is not supported in '.options()'.")
    _check_one_way_to_say_group(options)
    if is_generator is not None:
        validate_num_returns(options.get("num_returns"), is_generator=is_generator)


def validate_actor(options: dict[str, Any], *, in_options: bool) -> None:
    """Raise what Ray raises for options of an actor class."""
    for keyword, value in options.items():
        if keyword not in ACTOR:
            raise ValueError(
                f"Invalid option keyword {keyword} for actors. Valid ones are {list(ACTOR)}."
            )
        ACTOR[keyword].validate(keyword, value)
    if in_options and "concurrency_groups" in options:
        raise ValueError("Setting 'concurrency_groups' is not supported in '.options()'.")
    if options.get("get_if_exists") and not options.get("name"):
        raise ValueError("The actor name must be specified to use `get_if_exists`.")
    _check_one_way_to_say_group(options)


def validate_num_returns(num_returns: Any, *, is_generator: bool) -> None:
    """Raise what Ray raises for ``num_returns`` of a function or method."""
    if num_returns is None:
        return
    if isinstance(num_returns, int) and num_returns < 0:
        raise ValueError(f"num_returns must be >= 0, but got {num_returns}.")
    if num_returns == "dynamic":
        warnings.warn(
            "num_returns='dynamic' is deprecated and will be removed in a future Ray release. Use "
            "num_returns='streaming' instead.",
            DeprecationWarning,
            stacklevel=4,
        )
    if num_returns in ("streaming", "dynamic") and not is_generator:
        raise ValueError(
            f"num_returns='{num_returns}' can only be used with generator functions (functions "
            "that use 'yield'). The decorated function is not a generator function."
        )


def resources_of(options: dict[str, Any]) -> dict[str, float]:
    """The resource request that options spell."""
    resources: dict[str, float] = dict(options.get("resources") or {})
    if "CPU" in resources or "GPU" in resources:
        raise ValueError("The resources dictionary must not contain the key 'CPU' or 'GPU'")
    if "memory" in resources or "object_store_memory" in resources:
        raise ValueError(
            "The resources dictionary must not contain the key 'memory' or 'object_store_memory'"
        )
    if "bundle" in resources:
        raise ValueError(
            "The resource should not include `bundle` which is reserved for Ray. "
            f"resources: {resources}"
        )
    for keyword, name in (("num_cpus", "CPU"), ("num_gpus", "GPU"), ("memory", "memory"),
                          ("object_store_memory", "object_store_memory")):  # fmt: skip
        quantity = options.get(keyword)
        if quantity is not None:
            resources[name] = int(quantity) if keyword == "memory" else quantity
    for name, quantity in resources.items():
        if name in ACCELERATORS and quantity > 1 and quantity != int(quantity):
            raise ValueError(
                f"{name} resource quantities >1 must",
                f" be whole numbers. The specified quantity {quantity} is invalid.",
            )
    if options.get("accelerator_type") is not None:
        resources[f"accelerator_type:{options['accelerator_type']}"] = 0.001
    return resources
