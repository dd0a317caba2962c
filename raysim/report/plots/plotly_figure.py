"""A chart as a plotly figure: pointing at a mark shows its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from raysim.report.plots.marks import (
    BAR,
    TEXT_FREE,
    Area,
    Axis,
    Boxes,
    Heat,
    Line,
    Notes,
    Points,
    Rule,
    Scale,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from raysim.report.plots.chart import Chart

GRID, INK = "#e6e9ed", "#24292f"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


def figure(chart: Chart) -> go.Figure:
    """All marks in order, the axes, the legend."""
    import plotly.graph_objects as go

    reach_x, reach_y = chart.reach()
    x, y = chart.x.scale(reach_x), chart.y.scale(reach_y)
    traces = [trace for mark in chart.marks for trace in _traces(go, chart, mark, x, y)]
    made = go.Figure(traces)
    made.update_layout(
        title={"text": chart.title, "font": {"size": 16}}, height=chart.height,
        font={"family": FONT, "size": 12, "color": INK}, barmode="overlay", bargap=0.25,
        plot_bgcolor="white", paper_bgcolor="white", hovermode="closest",
        showlegend=chart.legend, margin={"l": 60, "r": 30, "t": 60, "b": 50},
        legend={"traceorder": "reversed" if _stacks(chart) else "normal"},
    )  # fmt: skip
    made.update_xaxes(**_axis(chart.x, x))
    if any(isinstance(mark, Boxes) and mark.texts for mark in chart.marks):
        made.update_xaxes(range=[0, reach_x / x.divisor * TEXT_FREE])
    made.update_yaxes(**_axis(chart.y, y))
    upright = 0
    for mark in chart.marks:
        if isinstance(mark, Rule):
            _rule(made, mark, x, y, upright % 2)
            upright += mark.across == "x"
    return made


def _stacks(chart: Chart) -> bool:
    return any(isinstance(mark, Area) and mark.stacked for mark in chart.marks)


def _axis(axis: Axis, scale: Scale) -> dict[str, Any]:
    said: dict[str, Any] = {
        "title": {"text": axis.title(scale)}, "gridcolor": GRID, "zeroline": False,
        "linecolor": "#9aa3ad", "automargin": True,
    }  # fmt: skip
    if axis.rows:
        numbers = list(range(len(axis.rows)))
        said |= {"tickvals": numbers, "ticktext": list(axis.rows), "showgrid": False}
        said |= {"range": [len(axis.rows) - 0.5, -0.5]}
    elif axis.bare:
        said |= {"visible": False}
    elif axis.ticks:
        said |= {"tickvals": [at / scale.divisor for at, _ in axis.ticks]}
        said |= {"ticktext": [text for _, text in axis.ticks]}
        said |= {"type": "log"} if axis.log else {}
    elif axis.top is not None:
        said |= {"range": [0, axis.top / scale.divisor]}
    elif axis.zero:
        said |= {"rangemode": "tozero"}
    return said


def _traces(go: Any, chart: Chart, mark: Any, x: Scale, y: Scale) -> Iterator[Any]:
    if isinstance(mark, Boxes):
        yield go.Bar(
            orientation="h", name=mark.name, marker={"color": mark.color, "line": {"width": 0}},
            y=list(mark.rows), base=[v / x.divisor for v in mark.starts],
            x=[v / x.divisor for v in mark.sizes], hovertext=list(mark.tips), hoverinfo="text",
            width=BAR, text=list(mark.texts) or None, textposition="outside", cliponaxis=False,
        )  # fmt: skip
    elif isinstance(mark, Area):
        yield go.Scatter(
            name=mark.name, x=[v / x.divisor for v in mark.x], y=[v / y.divisor for v in mark.y],
            mode="lines", line={"shape": "hv", "color": mark.color, "width": 1},
            stackgroup="one" if mark.stacked else None,
            fill="tonexty" if mark.stacked else "tozeroy", fillcolor=_tint(mark),
            hovertemplate=f"%{{y:,.4g}} {y.unit} at %{{x:,.6g}} {x.unit}",
        )  # fmt: skip
    elif isinstance(mark, Line):
        yield go.Scatter(
            name=mark.name, x=[v / x.divisor for v in mark.x], y=[v / y.divisor for v in mark.y],
            mode="lines", line={"color": mark.color, "width": 2}, opacity=mark.alpha,
            hovertext=mark.tip or mark.name, hoverinfo="text",
            showlegend=bool(mark.name), legendgroup=mark.name,
        )  # fmt: skip
    elif isinstance(mark, Points):
        shape = {"color": mark.color, "size": list(mark.sizes) or 9, "opacity": 0.85}
        yield go.Scatter(
            name=mark.name, x=[v / x.divisor for v in mark.x], y=[v / y.divisor for v in mark.y],
            mode="markers", hovertext=list(mark.tips), hoverinfo="text",
            showlegend=bool(mark.name),
            marker=shape | ({"symbol": "circle-open"} if mark.hollow else {}),
        )  # fmt: skip
    elif isinstance(mark, Notes):
        yield go.Scatter(
            x=[v / x.divisor for v in mark.x], y=[v / y.divisor for v in mark.y], mode="text",
            text=[f" {text} " for text in mark.texts],
            textposition=[
                f"{'top' if mark.among else 'middle'} {'left' if before else 'right'}"
                for before in mark.before
            ],
            textfont={"color": mark.color, "size": 11}, showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    elif isinstance(mark, Heat):
        yield _heat(go, chart, mark, x)


def _tint(mark: Area) -> str:
    """Stacked areas are full; others let the grid through."""
    if mark.stacked:
        return mark.color
    red, green, blue = (int(mark.color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.2)"


def _heat(go: Any, chart: Chart, mark: Heat, x: Scale) -> Any:
    scale = Axis(unit=mark.unit).scale(mark.most)
    cells = max(map(len, mark.values), default=0)
    return go.Heatmap(
        name=mark.name, zmin=0, zmax=mark.most / scale.divisor,
        x=[(mark.begin + mark.cell * (i + 0.5)) / x.divisor for i in range(cells)],
        y=list(range(len(chart.y.rows))),
        z=[[None if v is None else v / scale.divisor for v in row] for row in mark.values],
        colorscale=[[0, "#f3f5f7"], [1, mark.color]], hoverongaps=False,
        colorbar={"title": {"text": ", ".join(filter(None, (mark.name, scale.unit)))}},
        hovertemplate=f"%{{z:,.4g}} {scale.unit} at %{{x:,.6g}} {x.unit}<extra></extra>",
    )  # fmt: skip


def _rule(made: Any, mark: Rule, x: Scale, y: Scale, level: int) -> None:
    """Names of upright ones stand above the chart, those of neighbours one above the other."""
    line = {"color": mark.color, "width": 1.5, "dash": "dash"}
    said = {"text": mark.name, "showarrow": False, "font": {"color": mark.color, "size": 11}}
    if mark.across == "y":
        made.add_hline(y=mark.at / y.divisor, line=line)
        made.add_annotation(x=0, xref="paper", y=mark.at / y.divisor, xanchor="left",
                            yanchor="bottom", **said)  # fmt: skip
        return
    made.add_vline(x=mark.at / x.divisor, line=line)
    made.add_annotation(x=mark.at / x.divisor, y=1, yref="paper", xanchor="left", yanchor="bottom",
                        yshift=13 * level, **said)  # fmt: skip
