"""Where a run is, for whoever waits for it: noted by the run, read from outside at any moment.

Reading changes nothing, and may happen in another thread; a run knows no wall clock, so how fast
it goes is for the reader to find out. Phases are few and their shares of the whole are rough: they
say how far a run is to within some tenths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

Told = Callable[[str, float], None]
"""Told what is being done, and the share of the whole that is done."""


class Moment(NamedTuple):
    """What a run is doing, and how far it is."""

    doing: str
    share: float | None = None
    """Of the whole; None where the end is not known."""
    now_ns: int | None = None
    """Virtual time; None while nothing is played."""
    end_ns: int | None = None
    """Virtual time at the end, where it is known."""
    events: int = 0
    """That have happened on the clock being watched."""


class Progress:
    """The phase a run is in, and whom to ask how far that is."""

    __slots__ = ("_ask", "_begin", "_next", "_phase", "_share", "_told", "_upto", "doing")

    def __init__(self, told: Told | None = None) -> None:
        self.doing = "starting"
        self._phase = ""
        self._begin = self._share = self._next = self._upto = 0.0
        self._told = told
        self._ask: Callable[[], Moment] | None = None

    def phase(self, doing: str, upto: float) -> None:
        """Begin something that ends at the share ``upto`` of the whole."""
        self._begin = self._share = self._upto
        self._next = self._upto = upto
        self.doing = self._phase = doing
        self._ask = None
        if self._told is not None:
            self._told(doing, self._share)

    def part(self, number: int, of: int, what: str = "") -> None:
        """Begin part ``number`` (from 1) of the phase's ``of``: ``compiling rank 3 of 8``."""
        width = (self._upto - self._begin) / of
        self._share = self._begin + width * (number - 1)
        self._next = self._share + width
        self.doing = f"{self._phase} {number:,} of {of:,}{what}"

    def playing(self, ask: Callable[[], Moment]) -> None:
        """From now to the next phase ``ask`` knows where the run is; its share is the part's."""
        self._ask = ask

    def __call__(self) -> Moment:
        """Where the run is."""
        ask, begin, upto = self._ask, self._share, self._next
        if ask is None:
            return Moment(self.doing, begin)
        here = ask()
        if here.share is not None:
            here = here._replace(share=begin + (upto - begin) * here.share)
        return here
