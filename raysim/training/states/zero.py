"""ZeRO's arithmetic: which rank keeps how many bytes, and how gradients fill buckets.

Sources: ``deepspeed/runtime/zero/stage_1_and_2.py`` (flat partitions aligned to 2N elements, bucket
rule of ``reduce_independent_p_g_buckets_and_remove_grads``), ``partition_parameters.py`` (ZeRO-3
pads every parameter to a multiple of N). Pure functions; the order of events is in ``engines``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from raysim.perf.optimizer import optimizer_key
from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import Optimizer

EXPERT_GROUP_NUMEL = 178_956_971
"""Elements of a flat group of experts' parameters at most, unless the script says otherwise
(``moe/utils.py``, ``split_params_into_different_moe_groups_for_optimizer``)."""

# fp32 elements of optimizer state per parameter element, in bytes (torch.optim and DeepSpeed
# sources).
_STATE_BYTES = {
    "adam": 8.0, "lamb": 8.0, "adam8bit": 2.0 + 2 * 4 / 256, "sgd": 0.0, "sgd_momentum": 4.0,
    "lion": 4.0, "adagrad": 4.0, "muon": 4.0, "adafactor": 0.0,
}  # fmt: skip
"""Adam8bit keeps one fp32 scale per 256 elements and moment (bitsandbytes' block). What depends on
shapes (small tensors, Adafactor's sums, Muon's other half) is in ``optimizer_states``."""


def optimizer_state_bytes(optimizer: Optimizer) -> float:
    """Bytes of optimizer state per parameter element, fp32 master copy excluded."""
    return _STATE_BYTES[optimizer_key(optimizer.type, momentum=optimizer.momentum)]


def pinned_bytes(size_bytes: float) -> int:
    """Torch rounds each pinned allocation up to a power of two.

    ``CachingHostAllocator.h`` of 2.13, its ``pinned_max_round_threshold_mb`` as by default;
    DeepSpeed 0.19 pins through it (``DS_PIN_MEMORY_BACKEND`` unset).
    """
    size = round(size_bytes)
    return 1 << (size - 1).bit_length() if size > 1 else size


def flat_partition_numel(total: int, ranks: int) -> int:
    """Elements of one rank's slice of a flat buffer aligned to ``2 * ranks`` (ZeRO-1/2)."""
    align = 2 * ranks
    return -(-total // align) * align // ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatGroup:
    """Parameters that are flattened together, and partitioned over the ranks that hold them."""

    group: str
    """Of ranks: all replicas (``dp``), or those with the same experts (``edp``, or by their
    distance where mixtures differ in that)."""
    ranks: int
    gradients: tuple[Gradient, ...]

    @property
    def sharers(self) -> str:
        """Ranks that share the mixtures these are experts of."""
        return self.group.replace("edp", "ep").replace("replicate", "shard")

    @property
    def in_turns(self) -> FlatGroup:
        """With neighbours on different ranks (``_round_robin_reorder``)."""
        turns = (self.gradients[i :: self.ranks] for i in range(self.ranks))
        return replace(self, gradients=tuple(g for turn in turns for g in turn))

    @property
    def numel(self) -> int:
        """Elements of all of them."""
        return sum(g.numel for g in self.gradients)

    @property
    def own(self) -> int:
        """Elements of a rank's slice, padding included."""
        return flat_partition_numel(self.numel, self.ranks)

    @property
    def touched(self) -> int:
        """Elements of whole gradients that the fullest slice touches."""
        return touched_numel((g.numel for g in self.gradients), self.own)

    @property
    def offsets(self) -> dict[str, int]:
        """Where each gradient begins."""
        ends = accumulate((g.numel for g in self.gradients), initial=0)
        return dict(zip((g.name for g in self.gradients), ends, strict=False))


def flat_groups(
    built: Sequence[Gradient], ranks: int, expert_ranks: int | None
) -> tuple[FlatGroup, ...]:
    """One of everything, or experts' behind one of all others; None: experts are like others.

    Mixtures that differ in how many ranks share them are apart, in the order of their first.
    DeepSpeed makes one of each of the optimizer's groups; more than one of dense parameters is not
    modelled.
    """
    if expert_ranks is None:
        return (FlatGroup(group="dp", ranks=ranks, gradients=tuple(built)),)
    dense = FlatGroup(
        group="dp", ranks=ranks, gradients=tuple(g for g in built if not g.expert)
    )  # fmt: skip
    experts: dict[int, list[Gradient]] = {}
    for g in built:
        if g.expert:
            holders = ranks // g.among if g.among else expert_ranks
            experts.setdefault(holders, []).append(g)
    groups = [
        FlatGroup(
            group="edp" if holders == expert_ranks else f"dp_replicate:{ranks // holders}",
            ranks=holders, gradients=tuple(part),
        )
        for holders, some in experts.items()
        for part in pack(some, EXPERT_GROUP_NUMEL)
    ]  # fmt: skip
    return (dense, *groups) if dense.gradients else tuple(groups)


def slices(start: int, end: int, own: int) -> Iterator[int]:
    """Lengths of the parts of ``[start, end)`` between the ranks' slices of ``own`` elements."""
    while start < end:
        stop = min(end, (start // own + 1) * own)
        yield stop - start
        start = stop


def touched_numel(sizes: Iterable[int], own: int) -> int:
    """Elements of whole tensors that the fullest slice of ``own`` elements touches.

    ZeRO-1/2 keep the gradients of a slice tensor by tensor: one at its edge is kept whole.
    """
    touched: dict[int, int] = {}
    end = 0
    for size in sizes:
        start, end = end, end + size
        for slice_ in range(start // own, -(-end // own)):
            touched[slice_] = touched.get(slice_, 0) + size
    return max(touched.values(), default=0)


def shard_numel(numel: int, ranks: int) -> int:
    """Elements of one parameter a rank keeps under ZeRO-3, padding included."""
    return -(-numel // ranks)


class Bucket:
    """Gradients waiting to be reduced together, at most ``capacity`` elements.

    A gradient that would overflow the bucket flushes it first; one larger than the bucket travels
    alone, reduced from its own storage, but waits for the next one as others do.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.gradients: list[Gradient] = []
        self._held = 0

    def add(self, gradient: Gradient) -> Iterator[list[Gradient]]:
        """Take a gradient in; yields what must be reduced now, before it is in."""
        if self.gradients and self._held + gradient.numel > self.capacity:
            yield self.drain()
        self.gradients.append(gradient)
        self._held += gradient.numel

    def drain(self) -> list[Gradient]:
        """What it holds; it is empty afterwards."""
        full, self.gradients, self._held = self.gradients, [], 0
        return full


class Buckets:
    """One for each type in which gradients travel, by the bytes of an element."""

    def __init__(self, capacity: int, width: Callable[[Gradient], int]) -> None:
        self._capacity, self._width = capacity, width
        self._of: dict[int, Bucket] = {}

    def add(self, gradient: Gradient) -> Iterator[list[Gradient]]:
        """As a bucket of its type does."""
        bucket = self._of.setdefault(self._width(gradient), Bucket(self._capacity))
        yield from bucket.add(gradient)

    @property
    def gradients(self) -> bool:
        """Whether there are any."""
        return any(bucket.gradients for bucket in self._of.values())

    def drain(self) -> Iterator[list[Gradient]]:
        """What each holds, the narrowest type first (``sort_dtypes``)."""
        for _, bucket in sorted(self._of.items()):
            if bucket.gradients:
                yield bucket.drain()


def sub_groups(shards: Iterable[Gradient], size: int) -> list[list[Gradient]]:
    """ZeRO-3's optimizer steps group by group: a group ends with the shard that reaches ``size``.

    Source: ``_create_fp16_sub_groups`` of ``stage3.py``.
    """
    groups: list[list[Gradient]] = []
    held = size
    for shard in shards:
        if held >= size:
            groups.append([])
            held = 0
        groups[-1].append(shard)
        held += shard.numel
    return groups


def pack(gradients: Iterable[Gradient], capacity: int) -> Iterator[list[Gradient]]:
    """Bucket contents, in order, of gradients that are all there."""
    bucket = Bucket(capacity)
    for gradient in gradients:
        yield from bucket.add(gradient)
    if bucket.gradients:
        yield bucket.drain()
