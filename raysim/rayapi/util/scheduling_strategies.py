"""``ray.util.scheduling_strategies``: where a task or actor may run, as programs say it.

Real counterpart: ``python/ray/util/scheduling_strategies.py`` of ray 2.60.
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.identifiers import NodeID
from raysim.raycore.tasks import LabelMatch


class PlacementGroupSchedulingStrategy:
    """In a bundle of a placement group."""

    def __init__(
        self,
        placement_group: Any,
        placement_group_bundle_index: int = -1,
        placement_group_capture_child_tasks: bool | None = None,
    ) -> None:
        self.placement_group = placement_group
        self.placement_group_bundle_index = placement_group_bundle_index
        self.placement_group_capture_child_tasks = placement_group_capture_child_tasks


class NodeAffinitySchedulingStrategy:
    """On one node."""

    def __init__(
        self,
        node_id: Any,
        soft: bool,
        _spill_on_unavailable: bool = False,
        _fail_on_unavailable: bool = False,
    ) -> None:
        self.node_id: str = node_id if isinstance(node_id, str) else node_id.hex()
        self.soft = soft
        self._spill_on_unavailable = _spill_on_unavailable
        self._fail_on_unavailable = _fail_on_unavailable
        self.node = self._check()

    def _check(self) -> int:
        invalid = ValueError(
            f"Invalid node_id '{self.node_id}'. Node ID must be a valid hex string. To get a list "
            "of all nodes and their IDs in your cluster, use ray.nodes(). See "
            "https://docs.ray.io/en/latest/ray-core/miscellaneous.html#node-information for more "
            "details."
        )
        try:
            node = NodeID.from_hex(self.node_id)
        except Exception as error:
            raise invalid from error
        if node.is_nil():
            raise invalid
        if self._spill_on_unavailable and not self.soft:
            raise ValueError(
                "_spill_on_unavailable cannot be set when soft is False. Please set soft to True "
                "to use _spill_on_unavailable."
            )
        if self._fail_on_unavailable and self.soft:
            raise ValueError(
                "_fail_on_unavailable cannot be set when soft is True. Please set soft to False to "
                "use _fail_on_unavailable."
            )
        return node.number


def _check_values(values: tuple[Any, ...], operator: str) -> None:
    if not values:
        raise ValueError(
            f"The variadic parameter of the {operator} operator must be a non-empty tuple: "
            f'e.g. {operator}("value1", "value2").'
        )
    for index, value in enumerate(values):
        if not isinstance(value, str):
            raise ValueError(
                f"Type of value in position {index} for the {operator} operator must be str "
                f'(e.g. {operator}("value1", "value2")) but got {value} of type {type(value)}.'
            )


class In:
    """The label has one of these values."""

    operator = "in"

    def __init__(self, *values: str) -> None:
        _check_values(values, "In")
        self.values = list(values)


class NotIn:
    """The label has none of these values."""

    operator = "!in"

    def __init__(self, *values: str) -> None:
        _check_values(values, "NotIn")
        self.values = list(values)


class Exists:
    """The label is there."""

    operator = "exists"
    values: list[str] = []  # noqa: RUF012  (never changed)


class DoesNotExist:
    """The label is not there."""

    operator = "!exists"
    values: list[str] = []  # noqa: RUF012  (never changed)


class NodeLabelSchedulingStrategy:
    """By labels: ``hard`` must match, ``soft`` is preferred."""

    def __init__(self, hard: Any, *, soft: Any = None) -> None:
        self.hard = _expressions(hard, "hard")
        self.soft = _expressions(soft, "soft")
        if not (self.hard or self.soft):
            raise ValueError(
                "The `hard` and `soft` parameter of NodeLabelSchedulingStrategy cannot both be "
                "empty."
            )


def _expressions(given: Any, parameter: str) -> tuple[LabelMatch, ...]:
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise ValueError(
            f'The {parameter} parameter must be a map (e.g. {{"key1": In("value1")}}) '
            f"but got type {type(given)}."
        )
    found = []
    for key, value in given.items():
        if not isinstance(key, str):
            raise ValueError(
                f"The map key of the {parameter} parameter must be of type str "
                f'(e.g. {{"key1": In("value1")}}) but got {key} of type {type(key)}.'
            )
        if not isinstance(value, (In, NotIn, Exists, DoesNotExist)):
            raise ValueError(
                f"The map value for key {key} of the {parameter} parameter must be one of the "
                "`In`, `NotIn`, `Exists` or `DoesNotExist` operator "
                f'(e.g. {{"key1": In("value1")}}) but got {value} of type {type(value)}.'
            )
        operator: Any = value.operator
        found.append(LabelMatch(key=key, operator=operator, values=tuple(value.values)))
    return tuple(found)


for _class in (PlacementGroupSchedulingStrategy, NodeAffinitySchedulingStrategy, In, NotIn, Exists,
               DoesNotExist, NodeLabelSchedulingStrategy):  # fmt: skip
    _class.__module__ = "ray.util.scheduling_strategies"
