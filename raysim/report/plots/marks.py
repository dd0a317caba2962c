"""What a chart is made of, before anybody draws it: marks of a few kinds, and two axes.

Numbers are in the unit that their axis names (seconds, bytes, ...); whoever draws picks a readable
scale (`Axis.scale`), the same for every renderer. Colours are those of the report's light page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["s", "B", "B/s", "frac", "usd", ""]
_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "B": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "B/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")),
    "frac": ((0.01, "%"),),
    "usd": ((1e6, "million USD"), (1.0, "USD")),
    "": ((1.0, ""),),
}
"""Of each unit, from the largest on: how much one of it is, and its name."""
BAR = 0.72
"""Height of a box in its row."""
TEXT_FREE = 1.16
"""How much longer the axis is where texts stand beside the boxes."""
_AT_LEAST = 2.0
"""An axis reaches at least so many of the unit that it is written in."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How an axis is written: values divided by ``divisor``, in ``unit``."""

    divisor: float
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a chart."""

    label: str = ""
    unit: Unit = ""
    rows: tuple[str, ...] = ()
    """Of a vertical axis of rows: their names, the first on top."""
    top: float | None = None
    """Where it ends; None: where the marks do."""
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """Places and what is written there, instead of numbers."""
    zero: bool = True
    """Whether it begins at zero."""
    bare: bool = False
    """Without line and numbers."""

    def scale(self, reach: float) -> Scale:
        """The unit in which the largest value, ``reach``, is a handy number."""
        known = _SCALES[self.unit]
        for size, name in known:
            if reach >= size * _AT_LEAST or name == known[-1][1]:
                return Scale(size, name)
        raise AssertionError(f"no scale for {self.unit}")

    def title(self, scale: Scale) -> str:
        """``time, ms``."""
        return ", ".join(filter(None, (self.label, scale.unit)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """Rectangles on rows: slices of time, parts of a whole."""

    name: str
    color: str
    rows: Sequence[int]
    starts: Sequence[float]
    sizes: Sequence[float]
    tips: Sequence[str]
    texts: Sequence[str] = ()
    """What stands to the right of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """A step function of x: each value holds until the next."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    stacked: bool = False
    """On top of the stacked ones before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Straight lines from point to point."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    tip: str = ""
    alpha: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """A scatter."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    tips: Sequence[str]
    sizes: Sequence[float] = ()
    """Diameters in pixels; (): all alike."""
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Heat:
    """Rows of equal cells over x, the darker the more."""

    name: str
    color: str
    begin: float
    cell: float
    """Width of a cell."""
    values: Sequence[Sequence[float | None]]
    """By row, then by cell; None: nothing is there."""
    most: float
    """The value of the darkest cell."""
    unit: Unit = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the chart, with its name."""

    name: str
    at: float
    across: Literal["x", "y"] = "y"
    """The axis it stands on."""
    color: str = "#c0392b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """Words beside places of the chart."""

    x: Sequence[float]
    y: Sequence[float]
    texts: Sequence[str]
    color: str = "#24292f"
    among: Sequence[float] = ()
    """All that is drawn, across, where the places are on a line: words are above it then."""

    @property
    def before(self) -> list[bool]:
        """Of each whether it stands left of its place: in the right half there is no room."""
        drawn = self.among or self.x
        middle = (min(drawn, default=0.0) + max(drawn, default=0.0)) / 2
        return [x > middle for x in self.x]


Mark = Notes | Boxes | Area | Line | Points | Heat | Rule
