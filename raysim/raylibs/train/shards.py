"""What a rank reads its data from, as Ray Train sees it.

Real counterpart: the ``DataIterator`` of ``ray.train.get_dataset_shard`` (Ray Data's
``streaming_split``). ``ConstantRate`` stands in for a dataset whose pipeline makes so many batches
per second, whoever asks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, now, sleep
from raysim.units import to_ns


class Shard(Protocol):
    """One rank's part of a dataset, in its process."""

    def next_batch(self) -> Script:
        """``batch = yield from shard.next_batch()``: waits for it; None at the end of an epoch."""


class Dataset(Protocol):
    """What is handed to a trainer."""

    @property
    def batches_per_s(self) -> float | None:
        """Of one rank, where that is all there is to say of it; None: ask its shards."""

    def shard(self, process: CoreProcess, rank: int, world_size: int) -> Shard:
        """A rank's part, made in its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRate:
    """A pipeline that makes batches at a steady rate for each rank, and never ends."""

    batches_per_s: float
    prefetch: int = 1
    """Batches made ahead (``iter_batches(prefetch_batches=1)``)."""

    def shard(self, process: CoreProcess, rank: int, world_size: int) -> Shard:  # noqa: ARG002
        """The same for every rank."""
        return _ConstantShard(self)


class _ConstantShard:
    """A batch is begun when the one before it is made and there is room: one has been taken."""

    def __init__(self, rate: ConstantRate) -> None:
        self._period_ns = to_ns(1.0 / rate.batches_per_s)
        self._taken_ns: deque[int] = deque(maxlen=rate.prefetch + 1)
        self._made_ns: int | None = None

    def next_batch(self) -> Script:
        """The pipeline works on while a step runs, as far as it may run ahead."""
        now_ns = yield now()
        full = len(self._taken_ns) == self._taken_ns.maxlen
        room_ns = self._taken_ns[0] if full else 0
        before_ns = now_ns if self._made_ns is None else self._made_ns
        self._made_ns = max(before_ns, room_ns) + self._period_ns
        if now_ns < self._made_ns:
            yield sleep(self._made_ns - now_ns)
        self._taken_ns.append(max(now_ns, self._made_ns))
        return True


def seconds_per_batch(dataset: Dataset | None) -> float:
    """Of one rank in the steady state; 0: data are never waited for."""
    if dataset is None or dataset.batches_per_s is None:
        return 0.0
    return 1.0 / dataset.batches_per_s
