"""``ray.util.placement_group``: bundles of resources reserved together.

Real counterpart: ``python/ray/util/placement_group.py`` of ray 2.60, with its checks and messages.
Not modelled: ``topology_strategy`` beyond its node level (accelerator domains).
"""

from __future__ import annotations

from typing import Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.exceptions import RaySystemError
from raysim.rayapi.fibers import HUB
from raysim.rayapi.identifiers import NodeID, PlacementGroupID
from raysim.rayapi.labels import matches, wrong_selector
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.ids import hex_id
from raysim.raycore.protocol import GetPlacementGroups, PlacementGroupTableData
from raysim.raycore.resources import ResourceSet
from raysim.raycore.tasks import InPlacementGroup, TaskError

VALID_PLACEMENT_GROUP_STRATEGIES = {"PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"}


class PlacementGroup:
    """A handle to a placement group."""

    def __init__(
        self,
        id: PlacementGroupID | int,  # noqa: A002  (Ray's own name)
        bundle_cache: list[dict[str, float]] | None = None,
    ) -> None:
        self.id = PlacementGroupID(id) if isinstance(id, int) else id
        self.bundle_cache = bundle_cache

    @staticmethod
    def empty() -> PlacementGroup:
        """No group."""
        return PlacementGroup(PlacementGroupID.nil())

    @property
    def is_empty(self) -> bool:
        """Whether it is no group."""
        return self.id.is_nil()

    def ready(self) -> Any:
        """A reference that resolves to the group once it is placed."""
        from raysim.rayapi.api import put
        from raysim.rayapi.groups import ready_ref

        return put(self) if self.is_empty else ready_ref(self)

    @program_call
    def wait(self, timeout_seconds: float = 30) -> bool:
        """Whether it is placed within so many seconds."""
        fiber = this_fiber()
        core, lead_ns = this_core(fiber), fiber.take_lead()
        timeout_ns = None if timeout_seconds < 0 else round(timeout_seconds * 1e9)
        return bool(
            fiber.block(
                lambda then: core.groups.wait(
                    self.id.number, then, timeout_ns=timeout_ns, lead_ns=lead_ns
                )
            )
        )

    @property
    def bundle_specs(self) -> list[dict[str, float]]:
        """Its bundles."""
        if self.bundle_cache is None:
            rows = _rows(group=self.id.number)
            self.bundle_cache = [b.resources.quantities() for b in rows[0].bundles] if rows else []
        return self.bundle_cache

    @property
    def bundle_count(self) -> int:
        """How many bundles."""
        return len(self.bundle_specs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlacementGroup) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


PlacementGroup.__module__ = "ray.util.placement_group"


def _rows(*, group: int = 0, name: str = "") -> tuple[PlacementGroupTableData, ...]:
    fiber = this_fiber()
    core, lead_ns = this_core(fiber), fiber.take_lead()
    namespace = fiber.process.namespace
    message = GetPlacementGroups(group=group, name=name, ray_namespace=namespace if name else "")
    answer = fiber.block(lambda then: core.call_gcs(message, then, lead_ns=lead_ns))
    return tuple(answer or ())


@program_call
def placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    name: str = "",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
    topology_strategy: dict[str, str] | None = None,
) -> PlacementGroup:
    """Reserve bundles; they are placed meanwhile."""
    fiber = this_fiber()
    if topology_strategy is not None:
        raise NotEmulatedError("placement_group(topology_strategy=)", "strategy=")
    validate_placement_group(
        bundles, strategy, lifetime, _soft_target_node_id, bundle_label_selector
    )
    core, lead_ns = this_core(fiber), fiber.take_lead()
    target = NodeID.from_hex(_soft_target_node_id).number if _soft_target_node_id else None
    found: list[int] = []
    chosen: Any = strategy or "PACK"
    answer = fiber.block(
        lambda then: found.append(
            core.groups.create(
                [ResourceSet.of(bundle) for bundle in bundles], chosen, then,
                name=name, detached=lifetime == "detached", soft_target_node=target,
                label_selectors=[matches(s) for s in bundle_label_selector or []],
                lead_ns=lead_ns,
            )
        )
    )  # fmt: skip
    if isinstance(answer, TaskError):
        raise RaySystemError(answer.message)
    return PlacementGroup(found[0], [{k: float(v) for k, v in b.items()} for b in bundles])


@program_call
def remove_placement_group(placement_group: PlacementGroup) -> None:
    """Remove it; what runs in it fails."""
    assert placement_group is not None
    fiber = this_fiber()
    core, lead_ns = this_core(fiber), fiber.take_lead()
    fiber.block(lambda then: core.groups.remove(placement_group.id.number, then, lead_ns=lead_ns))


@program_call
def get_placement_group(placement_group_name: str) -> PlacementGroup:
    """A group by its name."""
    if not placement_group_name:
        raise ValueError("Please supply a non-empty value to get_placement_group")
    rows = _rows(name=placement_group_name)
    if not rows:
        raise ValueError(f"Failed to look up placement group with name: {placement_group_name}")
    return PlacementGroup(rows[0].group)


@program_call
def placement_group_table(placement_group: PlacementGroup | None = None) -> dict[str, Any]:
    """Rows of the GCS's table, as Ray shows them."""
    if placement_group is None:
        rows = _rows()
        return {hex_id("placement_group", row.group): _as_dict(row) for row in rows}
    rows = _rows(group=placement_group.id.number)
    return _as_dict(rows[0]) if rows else {}


def _as_dict(row: PlacementGroupTableData) -> dict[str, Any]:
    return {
        "placement_group_id": hex_id("placement_group", row.group),
        "name": row.name,
        "bundles": {b.bundle_index: b.resources.quantities() for b in row.bundles},
        "bundles_to_node_id": {
            b.bundle_index: hex_id("node", node) if node >= 0 else ""
            for b, node in zip(row.bundles, row.nodes, strict=True)
        },
        "strategy": row.strategy,
        "state": row.state,
        "stats": {},
    }


def get_current_placement_group() -> PlacementGroup | None:
    """The group the running task or actor is in."""
    fiber = HUB.current
    if fiber is None or fiber.process.is_driver:
        return None
    actor = fiber.process.actor
    running = this_fiber().running
    options = actor.creation_options if actor is not None else running.spec.options  # type: ignore[union-attr]
    strategy = options.strategy
    if not isinstance(strategy, InPlacementGroup):
        return None
    return PlacementGroup(strategy.placement_group_id)


def check_placement_group_index(placement_group: PlacementGroup, bundle_index: int) -> None:
    """Raise if the group has no such bundle."""
    if placement_group.is_empty:
        if bundle_index != -1:
            raise ValueError("If placement group is not set, the value of bundle index must be -1.")
    elif bundle_index >= placement_group.bundle_count or bundle_index < -1:
        raise ValueError(
            f"placement group bundle index {bundle_index} is invalid. Valid placement group "
            f"indexes: 0-{placement_group.bundle_count}"
        )


def validate_placement_group(
    bundles: list[dict[str, float]],
    strategy: str | None = None,
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: list[dict[str, str]] | None = None,
) -> None:
    """Raise what Ray raises for a group that cannot be."""
    if strategy is not None and strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        raise ValueError(
            f"Invalid placement group strategy {strategy}. "
            f"Supported strategies are: {VALID_PLACEMENT_GROUP_STRATEGIES}."
        )
    if _soft_target_node_id and strategy != "STRICT_PACK":
        raise ValueError(
            "_soft_target_node_id currently only works with STRICT_PACK but got "
            f"{strategy or 'PACK'}"
        )
    if _soft_target_node_id and NodeID.from_hex(_soft_target_node_id).is_nil():
        raise ValueError(f"Invalid hex ID of _soft_target_node_id, got {_soft_target_node_id}")
    _validate_bundles(bundles)
    if bundle_label_selector is not None:
        if len(bundles) != len(bundle_label_selector):
            raise ValueError(
                f"Invalid bundle label selector {bundle_label_selector}. The length of "
                "`bundle_label_selector` should equal the length of `bundles`."
            )
        for selector in bundle_label_selector:
            wrong = wrong_selector(selector)
            if wrong:
                raise ValueError(
                    "Invalid label selector provided in bundle_label_selector list. Detailed "
                    f"error: '{wrong}'"
                )
    if lifetime not in (None, "detached"):
        raise ValueError(
            "Placement group `lifetime` argument must be either `None` or 'detached'. "
            f"Got {lifetime}."
        )


def _validate_bundles(bundles: Any) -> None:
    if not isinstance(bundles, list):
        raise ValueError(f"Placement group bundles must be a list, got {type(bundles)}.")
    if not bundles:
        raise ValueError(
            "Bundles must be a non-empty list of resource dictionaries. For example: "
            '`[{"CPU": 1.0}, {"GPU": 1.0}]`. Got empty list instead.'
        )
    for bundle in bundles:
        if (
            not isinstance(bundle, dict)
            or not all(isinstance(name, str) for name in bundle)
            or not all(isinstance(quantity, (int, float)) for quantity in bundle.values())
        ):
            raise ValueError(
                "Bundles must be a non-empty list of resource dictionaries. For example: "
                '`[{"CPU": 1.0}, {"GPU": 1.0}]`.'
            )
        if not any(bundle.values()):
            raise ValueError(
                "Bundles cannot be an empty dictionary or resources with only 0 values. "
                f"Bundles: {bundles}"
            )


def _fits_a_bundle(request: dict[str, float], bundles: list[dict[str, float]]) -> bool:
    return any(all(bundle.get(name, 0) >= n for name, n in request.items()) for bundle in bundles)


def group_for(
    group: PlacementGroup | None,
    bundle_index: int,
    resources: dict[str, float],
    placement_resources: dict[str, float],
    what: str,
) -> PlacementGroup | None:
    """The group, checked against what shall run in it; None for none."""
    found = group or PlacementGroup.empty()
    check_placement_group_index(found, bundle_index)
    if found.is_empty:
        return None
    bundles = found.bundle_specs
    if not _fits_a_bundle(resources, bundles):
        raise ValueError(
            f"Cannot schedule {what} with the placement group because the resource request "
            f"{resources} cannot fit into any bundles for the placement group, {bundles}."
        )
    if not _fits_a_bundle(placement_resources, bundles):
        raise ValueError(
            f"Cannot schedule {what} with the placement group because the actor requires "
            f"{placement_resources.get('CPU', 0)} CPU for creation, but it cannot fit into any "
            f"bundles for the placement group, {bundles}. Consider creating a placement group "
            "with CPU resources."
        )
    return found


__all__ = [
    "PlacementGroup", "get_current_placement_group", "get_placement_group",
    "placement_group", "placement_group_table", "remove_placement_group",
]  # fmt: skip
