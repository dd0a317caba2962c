"""ZeRO-3's ``PartitionedParameterCoordinator``: what to gather, prefetch, keep and release.

A state machine over the recorded trace of module visits, driven visit by visit, as in
``deepspeed/runtime/zero/partitioned_param_coordinator.py`` of 0.19: ``fetch_sub_module`` gathers
what is missing, then prefetches along the trace within two budgets; ``release_sub_module`` keeps
what is persistent, what a prefetch already skipped, and what recurs within ``max_reuse_distance``.
It decides only; bytes and time are the engine's.

Not modelled: the first (record) iteration, trace invalidation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from raysim.training.layers.sections import Gradient
from raysim.training.settings.deepspeed import ZeroConfig


class Fetch(NamedTuple):
    """What one visit must gather now, and what it gathers ahead."""

    missing: tuple[Gradient, ...]
    wait_for: tuple[Gradient, ...]
    """Parameters of the visited module that are on their way."""
    prefetch: tuple[Gradient, ...]


class Walk(NamedTuple):
    """How far a walk over the trace has come, and what it holds."""

    step: int
    left: int
    """Parameters of the trace that no prefetch has come to yet: always its end."""
    available: frozenset[str]
    in_flight: frozenset[str]
    available_numel: int
    fetched_for: tuple[tuple[str, int], ...]


def persistent_names(parameters: Sequence[Gradient], zero: ZeroConfig) -> frozenset[str]:
    """Parameters that stay gathered: small ones, until the model threshold is reached.

    Source: ``deepspeed/runtime/zero/parameter_offload.py``, ``mark_persistent_parameters``.
    """
    total = 0
    names = []
    for parameter in parameters:
        if parameter.numel + total > zero.stage3_model_persistence_threshold:
            continue
        if parameter.numel <= zero.stage3_param_persistence_threshold:
            names.append(parameter.name)
            total += parameter.numel
    return frozenset(names)


class Coordinator:
    """One micro-batch's walk over the trace; ``reset`` starts the next one."""

    def __init__(
        self,
        visits: Sequence[tuple[Gradient, ...]],
        persistent: frozenset[str],
        zero: ZeroConfig,
        away: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.away = away
        """Whether a shard is on NVMe: prefetching stops before it."""
        self.visits = visits
        self.persistent = persistent
        self.zero = zero
        self.prefix = [0, *accumulate(sum(p.numel for p in visit) for visit in visits)]
        self.next_use = _next_uses(visits)
        self.trace = [(p, i) for i, visit in enumerate(visits) for p in visit]
        self.available: set[str] = set()
        self.in_flight: set[str] = set()
        self.reset()

    def reset(self) -> None:
        """A new forward begins: queue refilled, counters back to zero (``reset_step``)."""
        assert not self.in_flight, f"parameters still in flight: {sorted(self.in_flight)}"
        self.step = 0
        self.available_numel = 0
        self.queue = deque(self.trace)
        self.fetched_for: dict[str, int] = {}

    @property
    def walk(self) -> Walk:
        """All that decides what comes next."""
        return Walk(
            self.step, len(self.queue), frozenset(self.available), frozenset(self.in_flight),
            self.available_numel, tuple(self.fetched_for.items()),
        )  # fmt: skip

    @walk.setter
    def walk(self, walk: Walk) -> None:
        self.step, left, available, in_flight, self.available_numel, fetched_for = walk
        self.queue = deque(self.trace[len(self.trace) - left :])
        self.available, self.in_flight = set(available), set(in_flight)
        self.fetched_for = dict(fetched_for)

    def _gather(self, parameters: Iterable[Gradient]) -> tuple[Gradient, ...]:
        available, in_flight = self.available, self.in_flight
        missing = tuple(
            [p for p in parameters if p.name not in available and p.name not in in_flight]
        )
        for p in missing:
            in_flight.add(p.name)
            self.available_numel += p.numel
        return missing

    def fetch(self) -> Fetch:
        """Visit the next module of the trace."""
        visit = self.visits[self.step]
        missing = self._gather(visit)
        wait_for = tuple(p for p in visit if p.name in self.in_flight)
        for p in wait_for:
            self.in_flight.discard(p.name)
            self.available.add(p.name)
        self._skip_own(visit)
        prefetch = self._prefetch()
        self.step += 1
        return Fetch(missing=missing, wait_for=wait_for, prefetch=prefetch)

    def _skip_own(self, visit: Sequence[Gradient]) -> None:
        """Take this visit's parameters off the queue unless a prefetch already did."""
        pending = {p.name for p in visit if self.fetched_for.get(p.name, -1) < self.step}
        taken = 0
        while self.queue and taken < len(pending):
            p, used_at = self.queue.popleft()
            assert p.name in pending, f"trace order broken at visit {self.step}: {p.name}"
            self.fetched_for[p.name] = used_at
            taken += 1

    def _prefetch(self) -> tuple[Gradient, ...]:
        """Whole parameters along the trace until the smaller budget is crossed."""
        zero = self.zero
        bucket = 1 if zero.stage3_allgather_sequential else zero.stage3_prefetch_bucket_size
        budget = min(zero.stage3_max_live_parameters - self.available_numel, bucket)
        ahead: dict[str, Gradient] = {}
        numel = 0
        while self.queue and numel < budget and not self.away(self.queue[0][0].name):
            p, used_at = self.queue.popleft()
            self.fetched_for[p.name] = max(self.fetched_for.get(p.name, -1), used_at)
            known = p.name in self.available or p.name in self.in_flight
            if not known and p.name not in ahead:
                ahead[p.name] = p
                numel += p.numel
        return self._gather(ahead.values())

    @property
    def upcoming(self) -> Iterator[Gradient]:
        """Parameters of the trace that no prefetch has come to yet."""
        return (p for p, _ in self.queue)

    def release(self, visit_index: int) -> tuple[Gradient, ...]:
        """Parameters of a visit to give back after its computation."""
        released = []
        for p in self.visits[visit_index]:
            if p.name in self.persistent or p.name not in self.available:
                continue
            # The very next visit counts too: in DeepSpeed a parent module's visit stands between.
            if self.fetched_for.get(p.name, -1) >= self.step:
                continue
            following = self.next_use[visit_index].get(p.name)
            if following is not None:
                distance = self.prefix[following] - self.prefix[self.step]
                if distance < self.zero.stage3_max_reuse_distance:
                    continue
            self.available.discard(p.name)
            self.available_numel -= p.numel
            released.append(p)
        return tuple(released)

    def release_all(self) -> tuple[str, ...]:
        """What is still gathered and not persistent, before the optimizer step."""
        left = tuple(name for name in self.available if name not in self.persistent)
        self.available.difference_update(left)
        return left


def _next_uses(visits: Sequence[tuple[Gradient, ...]]) -> list[dict[str, int]]:
    """For each visit, the index of the next visit that uses each of its parameters."""
    upcoming: dict[str, int] = {}
    result: list[dict[str, int]] = [{} for _ in visits]
    for i in range(len(visits) - 1, -1, -1):
        result[i] = {p.name: upcoming[p.name] for p in visits[i] if p.name in upcoming}
        upcoming.update((p.name, i) for p in visits[i])
    return result
