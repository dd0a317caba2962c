"""Trials by status, and the actors kept for the next ones.

Real counterparts (ray 2.60): the sets of ``TuneController``, ``tune/utils/object_cache.py``. Where
Ray iterates over a set, this goes in the order things came.
"""

from __future__ import annotations

from collections import Counter, deque
from heapq import heappop, heappush
from itertools import count

from raysim.raylibs.tune.resources import PlacementGroupFactory
from raysim.raylibs.tune.trial import Status, Trial
from raysim.raylibs.tune.trial_actors import TrackedActor


class TrialTable:
    """All trials of an experiment, with their status."""

    def __init__(self) -> None:
        self.trials: dict[Trial, None] = {}
        self._numbers = count()
        self._counts: Counter[Status] = Counter()
        self._waiting: dict[Status, list[tuple[int, Trial]]] = {"PENDING": [], "PAUSED": []}
        self.queue: deque[Trial] = deque()
        """PENDING ones in the order they became so, with some that no longer are."""

    def add(self, trial: Trial) -> None:
        """At the end."""
        self.trials[trial] = None
        trial.order = next(self._numbers)
        self._counts[trial.status] += 1
        self._note(trial)

    def move_to_end(self, trial: Trial) -> None:
        """As a trial that failed and goes on."""
        del self.trials[trial]
        self.trials[trial] = None
        trial.order = next(self._numbers)
        self._note(trial)

    def set(self, trial: Trial, status: Status) -> None:
        """It changes."""
        if trial.status != status:
            self._counts[trial.status] -= 1
            self._counts[status] += 1
            trial.status = status
            self._note(trial)

    def count(self, status: Status) -> int:
        """How many have it."""
        return self._counts[status]

    @property
    def any_waiting(self) -> bool:
        """Some trial is PENDING or PAUSED."""
        return self._counts["PENDING"] + self._counts["PAUSED"] > 0

    @property
    def all_finished(self) -> bool:
        """No trial goes on."""
        return self._counts["TERMINATED"] + self._counts["ERROR"] == len(self.trials)

    def first_waiting(self) -> Trial | None:
        """The first PENDING in order, else the first PAUSED."""
        for status, heap in self._waiting.items():
            while heap:
                order, trial = heap[0]
                if trial.status == status and trial.order == order:
                    return trial
                heappop(heap)
        return None

    def _note(self, trial: Trial) -> None:
        heap = self._waiting.get(trial.status)
        if heap is not None:
            heappush(heap, (trial.order, trial))
        if trial.status == "PENDING":
            self.queue.append(trial)


class ActorCache:
    """Actors without a trial: as many as trials like theirs are staged, or one."""

    def __init__(self) -> None:
        self._cached: dict[PlacementGroupFactory, deque[TrackedActor]] = {}
        self._wanted: Counter[PlacementGroupFactory] = Counter()
        self.size = 0

    def want(self, key: PlacementGroupFactory, by: int) -> None:
        """``increase_max`` and ``decrease_max``."""
        self._wanted[key] += by

    @property
    def wanted(self) -> int:
        """By all staged trials."""
        return sum(self._wanted.values())

    def has(self, key: PlacementGroupFactory) -> bool:
        """One like it is there."""
        return bool(self._cached.get(key))

    def put(self, key: PlacementGroupFactory, actor: TrackedActor) -> bool:
        """Whether it is kept."""
        cached = self._cached.setdefault(key, deque())
        full = len(cached) >= self._wanted[key]
        if full and (self.size > 0 or any(self._wanted.values())):
            return False
        cached.append(actor)
        self.size += 1
        return True

    def pop(self, key: PlacementGroupFactory) -> TrackedActor:
        """The one that has been there longest."""
        self.size -= 1
        return self._cached[key].popleft()

    def flush(self, *, force_all: bool = False) -> list[TrackedActor]:
        """Those nobody wants any more."""
        out: list[TrackedActor] = []
        for key, cached in self._cached.items():
            if self.size == 1 and not force_all and not any(self._wanted.values()):
                break
            while len(cached) > (0 if force_all else self._wanted[key]):
                self.size -= 1
                out.append(cached.popleft())
        return out
