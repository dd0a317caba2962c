"""Quantities over time in a bounded number of rows: looks at gauges, and bytes spread over bins.

How long a run takes is not known beforehand, so both begin finely, and each time they are full they
double the distance of rows, or add two bins to one. Only listeners: nothing of a run depends on
them.
"""

from __future__ import annotations

MOST_ROWS = 480
"""A row is then at most 1/240 of the run from the next."""
_FIRST_NS = 1_000_000


class Sampler:
    """Rows of gauges, at most ``most``, at least as far apart as ``every_ns``."""

    __slots__ = ("_due_ns", "every_ns", "most", "rows")

    def __init__(self, most: int = MOST_ROWS) -> None:
        self.most = most
        self.every_ns = _FIRST_NS
        self.rows: list[tuple[int, tuple[float, ...]]] = []
        """(When, what was seen)."""
        self._due_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether a look now would be kept; ask before the work of looking."""
        return now_ns >= self._due_ns

    def add(self, now_ns: int, *values: float) -> None:
        """What is seen now."""
        self.rows.append((now_ns, values))
        while len(self.rows) > self.most:
            self.every_ns *= 2
            self._thin()
        self._due_ns = now_ns + self.every_ns

    def _thin(self) -> None:
        kept: list[tuple[int, tuple[float, ...]]] = []
        for row in self.rows:
            if not kept or row[0] - kept[-1][0] >= self.every_ns:
                kept.append(row)
        self.rows = kept


class SpreadBins:
    """Amounts over equal bins of time from 0 on, at most ``most`` of them."""

    __slots__ = ("amounts", "most", "width_ns")

    def __init__(self, most: int = MOST_ROWS) -> None:
        self.most = most
        self.width_ns = _FIRST_NS
        self.amounts: list[float] = []

    def add(self, amount: float, from_ns: int, to_ns: int) -> None:
        """So much, evenly between these."""
        while to_ns >= self.most * self.width_ns:
            self._halve()
        last = to_ns // self.width_ns
        if last >= len(self.amounts):
            self.amounts.extend([0.0] * (last + 1 - len(self.amounts)))
        spread(self.amounts, amount, from_ns, to_ns, self.width_ns)

    def _halve(self) -> None:
        self.width_ns *= 2
        odd = [*self.amounts[1::2], *([0.0] if len(self.amounts) % 2 else [])]
        self.amounts = [a + b for a, b in zip(self.amounts[::2], odd, strict=True)]


def spread(bins: list[float], amount: float, from_ns: float, to_ns: float, width_ns: float) -> None:
    """Add so much to bins, evenly between two moments; the last bin has what ends with it."""
    first = min(int(from_ns // width_ns), len(bins) - 1)
    last = min(int(to_ns // width_ns), len(bins) - 1)
    if first == last:
        bins[first] += amount
        return
    rate = amount / (to_ns - from_ns)
    bins[first] += rate * ((first + 1) * width_ns - from_ns)
    for i in range(first + 1, last):
        bins[i] += rate * width_ns
    bins[last] += rate * (to_ns - last * width_ns)
