"""Resources as Ray counts them: fixed point, in named pools, some of them divided into instances.

Real counterpart: ``src/ray/common/scheduling/`` (``FixedPoint``, ``ResourceSet``,
``NodeResources``, ``NodeResourceInstanceSet``). Quantities are integers of 1/10,000
(``MIN_RESOURCE_GRANULARITY``), so adding and taking away never drifts.

GPU and the configured accelerators are per instance: a request below 1 must fit within one
instance, above 1 it takes whole ones. All else is a pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

UNIT = 10_000
"""Steps per whole resource: ray._private.ray_constants.MIN_RESOURCE_GRANULARITY = 0.0001."""

MAX_UNITS = 10**18
"""ray_constants MAX_RESOURCE_QUANTITY = 1e14, in steps."""

CPU, GPU, MEMORY, OBJECT_STORE_MEMORY = "CPU", "GPU", "memory", "object_store_memory"

PER_INSTANCE = frozenset(
    {GPU, "neuron_cores", "TPU", "NPU", "HPU", "RBLN", "FURIOSA", "TTNPU", "MBLT"}
)
"""``predefined_unit_instance_resources`` and ``custom_unit_instance_resources`` of ray 2.60."""

BUNDLE_MARKER_UNITS = 1000 * UNIT
"""What a bundle offers of its marker resource, of which each lease takes 0.001."""


class ResourceSet(Mapping[str, int]):
    """An immutable request: name to steps of 1/10,000, zeros left out. Hashable.

    Raises
    ------
    ValueError
        A quantity is negative or beyond Ray's largest.
    """

    __slots__ = ("_hash", "_items", "units")

    def __init__(self, units: Mapping[str, int] | None = None) -> None:
        kept = {name: n for name, n in sorted((units or {}).items()) if n}
        for name, n in kept.items():
            if not 0 < n <= MAX_UNITS:
                raise ValueError(f"resource {name}: {n / UNIT:g} is not between 0 and 1e14")
        self.units: dict[str, int] = kept
        self._items = tuple(kept.items())
        self._hash = hash(self._items)

    @classmethod
    def of(cls, quantities: Mapping[str, float]) -> ResourceSet:
        """From what users write: ``{"CPU": 0.5, "GPU": 1}``."""
        return cls({name: round(q * UNIT) for name, q in quantities.items()})

    def quantities(self) -> dict[str, float]:
        """As users write them."""
        return {name: n / UNIT for name, n in self.units.items()}

    def plus(self, other: Mapping[str, int]) -> ResourceSet:
        """Both together."""
        total = dict(self.units)
        for name, n in other.items():
            total[name] = total.get(name, 0) + n
        return ResourceSet(total)

    def __getitem__(self, name: str) -> int:
        return self.units[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.units)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceSet) and self._items == other._items

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k}: {v / UNIT:g}" for k, v in self._items) + "}"


NOTHING = ResourceSet()

Allocation = dict[str, list[int] | int]
"""What a lease holds: steps of a pool, or steps per instance (0 for those it does not use)."""


class NodeResources:
    """What one node has and what of it is free. The raylet owns the one that counts."""

    __slots__ = ("available", "bundles", "instances", "labels", "total", "version")

    def __init__(self, total: Mapping[str, int], labels: Mapping[str, str] | None = None) -> None:
        self.total: dict[str, int] = dict(total)
        self.available: dict[str, int] = dict(total)
        self.labels: dict[str, str] = dict(labels or {})
        self.instances: dict[str, list[int]] = {
            name: _whole_instances(n)
            for name, n in total.items()
            if base_name(name) in PER_INSTANCE
        }
        """Free steps per instance."""
        self.bundles: dict[str, list[int]] = {}
        """Indices of the committed bundles of each group that are here, in order."""
        self.version = 0
        """Raised by every change, also one that undoes another: what others deducted from their
        copies of this in between is mended only if it is reported."""

    def fits(self, request: ResourceSet) -> bool:
        """Whether an idle node of this kind would do: feasible."""
        total = self.total
        for name, n in request.units.items():  # noqa: SIM110  (twice as fast as all())
            if total.get(name, 0) < n:
                return False
        return True

    def has(self, request: ResourceSet) -> bool:
        """Whether it is free now, instance by instance where that matters: available."""
        available = self.available
        for name, n in request.units.items():
            if available.get(name, 0) < n:
                return False
            if name in self.instances and not _instances_have(self.instances[name], n):
                return False
        return True

    def allocate(self, request: ResourceSet) -> Allocation | None:
        """Take it, or nothing if it is not all there.

        Instances: whole ones from the lowest; a fraction from the fullest instance that has room
        (best fit, lowest first), as ``NodeResourceInstanceSet::TryAllocate`` does.
        """
        if not self.has(request):
            return None
        self.version += 1
        allocation: Allocation = {}
        for name, n in request.units.items():
            self.available[name] -= n
            free = self.instances.get(name)
            allocation[name] = n if free is None else _take_instances(free, n)
        return allocation

    def allocate_in_group(
        self, request: ResourceSet, group: str, index: int
    ) -> tuple[Allocation, int] | None:
        """Take a request ``within_group`` from one bundle of the group, and which bundle it was.

        Indexed and wildcard amounts go together and name the same instances, whichever of them was
        asked for. Without an index the first bundle with room is taken; if none has it for all, the
        first for each resource, as Ray's raylet looks for one after the other
        (``NodeResourceInstanceSet::TryAllocate``).
        """
        bases = {base_name(name): n for name, n in request.units.items()}
        found = self._bundles_for(bases, group, index)
        if found is None:
            return None
        self.version += 1
        allocation: Allocation = {}
        for base, n in bases.items():
            indexed, wildcard = bundle_names(base, group, found[base])
            free = self.instances.get(indexed)
            allocation[indexed] = n if free is None else _take_instances(free, n)
            taken = allocation[indexed]
            if free is not None and isinstance(taken, list):
                _subtract(self.instances[wildcard], taken)
                allocation[wildcard] = list(taken)
            else:
                allocation[wildcard] = n
            self.available[indexed] -= n
            self.available[wildcard] -= n
        return allocation, next(iter(found.values()))

    def _bundles_for(
        self, bases: Mapping[str, int], group: str, index: int
    ) -> dict[str, int] | None:
        """Which bundle each resource is taken from; None: there is no room."""
        there = [b for b in self.bundles.get(group, ()) if index in (-1, b)]
        for bundle in there:
            whole = {bundle_names(base, group, bundle)[0]: n for base, n in bases.items()}
            if self.has(ResourceSet(whole)):
                return dict.fromkeys(bases, bundle)
        found: dict[str, int] = {}
        for base, n in bases.items():
            for bundle in there:
                if self.has(ResourceSet({bundle_names(base, group, bundle)[0]: n})):
                    found[base] = bundle
                    break
            else:
                return None
        return found

    def free(self, allocation: Allocation) -> None:
        """Give it back."""
        self.version += 1
        available = self.available
        for name, taken in allocation.items():
            if isinstance(taken, int):
                available[name] = available.get(name, 0) + taken
                continue
            free = self.instances[name]
            for index, n in enumerate(taken):
                free[index] += n
            available[name] += sum(taken)

    def take_back(self, name: str, n: int) -> None:
        """Take a pool resource even if that makes it negative: an unblocked worker's CPU."""
        self.version += 1
        self.available[name] = self.available.get(name, 0) - n

    def add(self, units: Mapping[str, int]) -> None:
        """Offer more of a pool."""
        self.version += 1
        for name, n in units.items():
            self.total[name] = self.total.get(name, 0) + n
            self.available[name] = self.available.get(name, 0) + n

    def remove(self, units: Mapping[str, int]) -> None:
        """Offer less, and nothing of what falls to zero."""
        self.version += 1
        for name, n in units.items():
            self.total[name] -= n
            self.available[name] -= n
            if not self.total[name]:
                del self.total[name], self.available[name]

    def add_bundle(self, held: Allocation, group: str, index: int) -> None:
        """Offer what a bundle holds under the group's names: the same instances, and a marker."""
        for name, n in [*held.items(), ("bundle", BUNDLE_MARKER_UNITS)]:
            for renamed in bundle_names(name, group, index):
                if isinstance(n, int):
                    self.add({renamed: n})
                    continue
                self.add({renamed: sum(n)})
                there = self.instances.setdefault(renamed, [0] * len(n))
                for i, steps in enumerate(n):
                    there[i] += steps
        self.bundles[group] = sorted([*self.bundles.get(group, ()), index])

    def remove_bundle(self, held: Allocation, group: str, index: int) -> None:
        """Offer it no longer; nothing may be taken from it now."""
        for name, n in [*held.items(), ("bundle", BUNDLE_MARKER_UNITS)]:
            for renamed in bundle_names(name, group, index):
                if isinstance(n, int):
                    self.remove({renamed: n})
                    continue
                _subtract(self.instances[renamed], n)
                self.remove({renamed: sum(n)})
                if renamed not in self.total:
                    del self.instances[renamed]
        self.bundles[group].remove(index)
        if not self.bundles[group]:
            del self.bundles[group]


_CRITICAL = (CPU, MEMORY, OBJECT_STORE_MEMORY)


def utilization(available: Mapping[str, int], total: Mapping[str, int]) -> float:
    """Critical utilisation: the fullest of CPU, memory and object store, from 0 to 1."""
    worst = 0.0
    for name in _CRITICAL:
        n = total.get(name)
        if n:
            used = 1 - available.get(name, 0) / n
            if used > worst:
                worst = used
    return worst


def _subtract(free: list[int], taken: list[int]) -> None:
    for index, n in enumerate(taken):
        free[index] -= n


def _whole_instances(units: int) -> list[int]:
    whole, rest = divmod(units, UNIT)
    return [UNIT] * whole + ([rest] if rest else [])


def _instances_have(free: list[int], n: int) -> bool:
    if n < UNIT:
        return any(f >= n for f in free)
    return n % UNIT == 0 and sum(f == UNIT for f in free) >= n // UNIT


def _take_instances(free: list[int], n: int) -> list[int]:
    taken = [0] * len(free)
    if n < UNIT:
        best = min((f, i) for i, f in enumerate(free) if f >= n)[1]
        taken[best] = n
    else:
        for index in [i for i, f in enumerate(free) if f == UNIT][: n // UNIT]:
            taken[index] = UNIT
    for index, t in enumerate(taken):
        free[index] -= t
    return taken


# ---- placement groups: a bundle's resources under other names ------------------------------------


def base_name(name: str) -> str:
    """``CPU`` for ``CPU_group_0_00ab`` and ``CPU_group_00ab``."""
    return name.split("_group_", 1)[0]


def bundle_names(name: str, group: str, index: int) -> tuple[str, str]:
    """A bundle's resource, as a task asks for it with and without the bundle's index."""
    return f"{name}_group_{index}_{group}", f"{name}_group_{group}"


def within_group(request: ResourceSet, group: str, index: int) -> ResourceSet:
    """A request renamed to be met by a group's bundle; ``index`` -1 for whichever has room.

    With an index both names are asked for, so that wildcard and indexed amounts go together.
    """
    renamed: dict[str, int] = {}
    for name, n in [*request.units.items(), ("bundle", UNIT // 1000)]:
        indexed, wildcard = bundle_names(name, group, index)
        renamed[wildcard] = n
        if index >= 0:
            renamed[indexed] = n
    return ResourceSet(renamed)


def quantities(units: Mapping[str, int]) -> dict[str, float]:
    """Resources as the node table has them, in Ray's numbers."""
    return {name: n / UNIT for name, n in units.items()}


def total_resources(nodes: Iterable[Any]) -> dict[str, float]:
    """Whole resources of all nodes that live, by name; ``nodes`` as the GCS tells of them."""
    total: dict[str, float] = {}
    for node in nodes:
        if node.state != "DEAD":
            for name, units in node.resources.items():
                total[name] = total.get(name, 0.0) + units / UNIT
    return total
