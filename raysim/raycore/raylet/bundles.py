"""Placement group bundles on one node: prepared, committed, returned.

Real counterpart: ``src/ray/raylet/placement_group_resource_manager.cc``. Preparing takes the
bundle's resources, GPU by GPU; committing offers them again under the group's names, the same
GPUs; cancelling undoes either.
"""

from __future__ import annotations

from raysim.raycore.ids import PlacementGroupID, hex_id
from raysim.raycore.protocol import Bundle
from raysim.raycore.resources import Allocation, NodeResources

Key = tuple[PlacementGroupID, int]


def group_name(group: PlacementGroupID) -> str:
    """As the group appears in names of resources."""
    return hex_id("placement_group", group)


class Bundles:
    """The bundles that a node holds."""

    __slots__ = ("_local", "committed", "prepared")

    def __init__(self, local: NodeResources) -> None:
        self._local = local
        self.prepared: dict[Key, Allocation] = {}
        self.committed: dict[Key, Allocation] = {}

    def prepare(self, bundles: tuple[Bundle, ...]) -> bool:
        """Hold all of them back, or none. Asked again, it is as good as done."""
        new = [b for b in bundles if not self.has((b.group, b.bundle_index))]
        taken: dict[Key, Allocation] = {}
        for bundle in new:
            allocation = self._local.allocate(bundle.resources)
            if allocation is None:
                for held in taken.values():
                    self._local.free(held)
                return False
            taken[bundle.group, bundle.bundle_index] = allocation
        self.prepared |= taken
        return True

    def commit(self, bundles: tuple[Bundle, ...]) -> bool:
        """Offer them under the group's names."""
        for bundle in bundles:
            key = (bundle.group, bundle.bundle_index)
            if key in self.committed:
                continue
            held = self.prepared.pop(key, None)
            if held is None:
                return False
            self.committed[key] = held
            self._local.add_bundle(held, group_name(bundle.group), bundle.bundle_index)
        return True

    def cancel(self, key: Key) -> None:
        """Undo either; nothing runs in it any more. Of one that is not here: nothing."""
        held = self.prepared.pop(key, None)
        if held is None:
            held = self.committed.pop(key, None)
            if held is None:
                return
            self._local.remove_bundle(held, group_name(key[0]), key[1])
        self._local.free(held)

    @property
    def held(self) -> bool:
        """Whether anything is held back."""
        return bool(self.prepared or self.committed)

    def has(self, key: Key) -> bool:
        """Whether the bundle is here."""
        return key in self.prepared or key in self.committed
