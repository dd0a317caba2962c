"""What a trial asks of the cluster: a placement group, its trainable in the first bundle.

Real counterpart: ``ray/tune/execution/placement_groups.py`` (ray 2.60).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raysim.raycore.process import BundleStrategy
from raysim.raycore.resources import ResourceSet


class PlacementGroupFactory:
    """Bundles and how they are to be placed; equal ones share actors and groups.

    Parameters
    ----------
    bundles
        Resources of each; the trainable lives in the first, which may be empty: then it holds
        nothing. The default is one CPU.
    strategy
        As of ``placement_group``.
    """

    __slots__ = ("bundles", "head_is_empty", "key", "strategy")

    def __init__(
        self, bundles: Sequence[Mapping[str, float]] = ({"CPU": 1},),
        strategy: BundleStrategy = "PACK",
    ) -> None:  # fmt: skip
        if not bundles:
            raise ValueError("Cannot initialize a ResourceRequest with zero bundles.")
        kept = [{k: float(v) for k, v in b.items() if v} for b in bundles]
        if not any(kept):
            raise ValueError(
                "Cannot initialize a ResourceRequest with an empty head and zero worker bundles."
            )
        self.head_is_empty = not kept[0]
        self.bundles = tuple(b for b in kept if b)
        self.strategy: BundleStrategy = strategy
        amounts = tuple(tuple(sorted(b.items())) for b in self.bundles)
        self.key = (self.head_is_empty, self.strategy, amounts)

    @property
    def head_bundle_is_empty(self) -> bool:
        """The trainable holds nothing."""
        return self.head_is_empty

    @property
    def head_bundle(self) -> Mapping[str, float]:
        """What the trainable holds."""
        return {} if self.head_is_empty else self.bundles[0]

    @property
    def required_resources(self) -> dict[str, float]:
        """All bundles together."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total

    def sets(self) -> list[ResourceSet]:
        """As Ray Core takes them."""
        return [ResourceSet.of(b) for b in self.bundles]

    def __eq__(self, other: object) -> bool:
        """Equal bundles, equal strategy."""
        return isinstance(other, PlacementGroupFactory) and self.key == other.key

    def __hash__(self) -> int:
        """Of what makes it equal."""
        return hash(self.key)

    def __repr__(self) -> str:
        """As Ray prints it."""
        return f"<PlacementGroupFactory (bundles={list(self.bundles)}, strategy={self.strategy})>"


def of_resources(resources: Mapping[str, float] | None) -> PlacementGroupFactory:
    """``{"cpu": 2, "gpu": 1}``: one bundle; nothing said: one CPU."""
    names = {"cpu": "CPU", "gpu": "GPU"}
    return PlacementGroupFactory(
        [{names.get(k, k): v for k, v in (resources or {"CPU": 1}).items()}]
    )
