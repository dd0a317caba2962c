"""Turns of many threads at few cores: who comes when all are taken waits until one is free.

Real counterpart: Linux's fair scheduler, which lets a thread that has begun go on for a slice
(3 ms): pieces of work that are shorter, as messages are, run one after the other. No core is idle
while a thread waits, and no two threads have one core.

Work is booked ahead of the clock, in any order: what comes later and begins earlier takes the time
that is left between, and delays nothing that was booked.
"""

from __future__ import annotations

from bisect import bisect_right

Taken = list[tuple[int, int]]
"""Stretches of time, none touching another, in order."""


class Turns:
    """The cores of a machine, and when each is taken."""

    def __init__(self, cores: int) -> None:
        self.taken: list[Taken] = [[] for _ in range(cores)]
        """Of each core."""

    def book(self, start_ns: int, work_ns: int) -> int:
        """When ``work_ns`` of work that may begin at ``start_ns`` is done, by the first free."""
        end_ns, chosen = min(
            (_done(taken, start_ns, work_ns), number) for number, taken in enumerate(self.taken)
        )
        _take(self.taken[chosen], start_ns, end_ns)
        return end_ns

    def busy(self, at_ns: int) -> int:
        """Cores that are taken then."""
        return sum(_is_taken(taken, at_ns) for taken in self.taken)

    def forget(self, before_ns: int) -> None:
        """Nothing will begin before."""
        for taken in self.taken:
            over = 0
            while over < len(taken) and taken[over][1] <= before_ns:
                over += 1
            del taken[:over]


def _first(taken: Taken, at_ns: int) -> int:
    """Index of the first stretch that ends after that."""
    at = bisect_right(taken, (at_ns, at_ns))
    return at - 1 if at and taken[at - 1][1] > at_ns else at


def _is_taken(taken: Taken, at_ns: int) -> bool:
    first = _first(taken, at_ns)
    return first < len(taken) and taken[first][0] <= at_ns


def _done(taken: Taken, start_ns: int, work_ns: int) -> int:
    """When it is done in the time that is free from ``start_ns`` on."""
    at_ns = start_ns
    for begin_ns, end_ns in taken[_first(taken, start_ns) :]:
        if begin_ns - at_ns >= work_ns:
            break
        if begin_ns > at_ns:
            work_ns -= begin_ns - at_ns
        at_ns = end_ns
    return at_ns + work_ns


def _take(taken: Taken, start_ns: int, end_ns: int) -> None:
    """All of that is taken now."""
    first = last = _first(taken, start_ns - 1)
    while last < len(taken) and taken[last][0] <= end_ns:
        last += 1
    if last > first:
        start_ns = min(start_ns, taken[first][0])
        end_ns = max(end_ns, taken[last - 1][1])
    taken[first:last] = [(start_ns, end_ns)]
