"""When a loop that looks again and again finds what has happened meanwhile.

Real counterpart: ``while True: look(); time.sleep(period)``. The look that finds something is
worked out; the others are no events.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Polls:
    """Instants at which something is looked at."""

    origin_ns: int
    """The first."""
    period_ns: int

    def at(self, now_ns: int) -> int:
        """The first look at ``now_ns`` or later."""
        if now_ns <= self.origin_ns:
            return self.origin_ns
        return self.origin_ns + -(-(now_ns - self.origin_ns) // self.period_ns) * self.period_ns

    def after(self, now_ns: int) -> int:
        """The first look later than ``now_ns``."""
        return self.at(now_ns + 1)
