"""A chart that shows itself: as a plotly figure in notebooks, as PNG or SVG in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.errors import ScenarioError
from raysim.report.plots.marks import (
    Area,
    Axis,
    Boxes,
    Heat,
    Line,
    Mark,
    Notes,
    Points,
    Rule,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

WIDTH = 1000
ROW = 26
"""Pixels of a row, where the vertical axis has rows."""
FRAME = 150
"""Pixels of title, axis and legend."""
PLAIN_HEIGHT = 440


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Chart:
    """Marks between two axes; what ``result.plot`` answers.

    In a notebook a cell that ends in it shows the plotly figure.

    Attributes
    ----------
    title
        What it shows, in a sentence.
    x, y
        The axes.
    marks
        What is drawn, from the back to the front.

    Examples
    --------
    >>> import raysim
    >>> result = raysim.run(raysim.load("scenarios/vit_cifar10_ddp"))
    >>> result.plot.step().figure().update_layout(width=600).layout.width
    600
    """

    title: str
    x: Axis
    y: Axis
    marks: tuple[Mark, ...]
    legend: bool = True

    def __repr__(self) -> str:
        """Its title; the numbers are in ``marks``."""
        return f"Chart({self.title!r}, {len(self.marks)} marks)"

    @property
    def height(self) -> int:
        """Pixels that suit it."""
        rows = len(self.y.rows)
        return FRAME + ROW * max(rows, 2) if rows else PLAIN_HEIGHT

    def figure(self) -> go.Figure:
        """As a plotly figure."""
        from raysim.report.plots import plotly_figure

        return plotly_figure.figure(self)

    def save(
        self, path: str | Path, *, width: int = WIDTH, height: int | None = None, scale: float = 2.0
    ) -> Path:
        """Write it as PNG or SVG, by the path's ending; the same chart gives the same bytes.

        Parameters
        ----------
        path
            Ends in ``.png`` or ``.svg``.
        width, height
            In CSS pixels; ``height`` by what the chart holds.
        scale
            Pixels of a PNG per CSS pixel.

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ScenarioError
            Another ending, or matplotlib is not installed.
        """
        where = Path(path)
        if where.suffix not in {".png", ".svg"}:
            raise ScenarioError(f"{where}: a chart is written as .png or .svg")
        try:
            from raysim.report.plots import matplotlib_drawing
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "matplotlib":
                raise
            raise ScenarioError(
                f"{where}: writing a chart needs matplotlib: pip install 'raysim[png]'"
            ) from error
        matplotlib_drawing.save(self, where, width=width, height=height or self.height, scale=scale)
        return where

    def reach(self) -> tuple[float, float]:
        """The largest x and y of any mark, or where the axes are told to end."""
        xs, ys = [0.0], [0.0]
        for mark in self.marks:
            x, y = _reach(mark)
            xs.append(x)
            ys.append(y)
        ys.append(max(stacked_tops(self.marks), default=0.0))
        return self.x.top or max(xs), self.y.top or max(ys)

    def _repr_html_(self) -> str:
        """For viewers that ask for HTML: with plotly inside, so that it shows offline."""
        made: str = self.figure().to_html(full_html=False, include_plotlyjs=True)
        return made

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Any:
        """For IPython: what plotly's own figures answer."""
        return self.figure()._repr_mimebundle_(include, exclude)


def _reach(mark: Mark) -> tuple[float, float]:
    if isinstance(mark, Boxes):
        ends = (a + b for a, b in zip(mark.starts, mark.sizes, strict=True))
        return max(ends, default=0.0), 0.0
    if isinstance(mark, Heat):
        return mark.begin + mark.cell * max(map(len, mark.values), default=0), 0.0
    if isinstance(mark, Rule):
        return (mark.at, 0.0) if mark.across == "x" else (0.0, mark.at)
    if isinstance(mark, Area) and mark.stacked:
        return max(mark.x, default=0.0), 0.0
    assert isinstance(mark, Area | Line | Points | Notes), "every kind of mark is known"
    return max(mark.x, default=0.0), max(mark.y, default=0.0)


def stacked_tops(marks: Sequence[Mark]) -> list[float]:
    """Upper edge of all stacked areas, which share their x."""
    areas = [mark.y for mark in marks if isinstance(mark, Area) and mark.stacked]
    return [sum(column) for column in zip(*areas, strict=True)]
