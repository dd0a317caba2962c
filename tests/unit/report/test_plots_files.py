"""Charts as plotly figures and as files: the same numbers, the same bytes, the right size."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from raysim.errors import ScenarioError
from raysim.report import plots
from raysim.report.plots.chart import Chart
from raysim.report.plots.marks import (
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

SECONDS = Axis(label="time", unit="s")
BOXES = Boxes(
    name="forward", color="#0072b2", rows=[0, 1], starts=[0.0, 0.002], sizes=[0.002, 0.004],
    tips=["a", "b"], texts=["2 ms", "4 ms"],
)  # fmt: skip
CHARTS = {
    "boxes": Chart(title="boxes", x=SECONDS, y=Axis(rows=("one", "two")), marks=(BOXES,)),
    "areas": Chart(
        title="areas", x=SECONDS, y=Axis(label="memory", unit="B", top=4 * 2**30),
        marks=(
            Area(name="a", color="#0072b2", x=[0, 1, 2], y=[2**30, 0, 0], stacked=True),
            Area(name="b", color="#e69f00", x=[0, 1, 2], y=[2**30, 2**31, 0], stacked=True),
            Rule(name="capacity", at=3 * 2**30), Rule(name="peak", at=1.0, across="x"),
        ),
    ),
    "lines": Chart(
        title="lines", x=Axis(ticks=((0.0, "k"), (1.0, "usd")), zero=False),
        y=Axis(bare=True, zero=False),
        marks=(
            Line(name="best", color="#d55e00", x=[0.0, 1.0], y=[0.0, 1.0]),
            Notes(x=[0.0], y=[0.0], texts=["here"]),
        ),
    ),
    "points": Chart(
        title="points", x=Axis(label="size", log=True, ticks=((16.0, "16 B"),)),
        y=Axis(label="rate", unit="B/s"),
        marks=(Points(name="all_reduce", color="#0072b2", x=[16.0, 1e6], y=[1e9, 5e9],
                      tips=["a", "b"], sizes=[8, 20]),),
    ),
    "heat": Chart(
        title="heat", x=SECONDS, y=Axis(rows=("node-0", "node-1")), legend=False,
        marks=(Heat(name="busy", color="#0072b2", begin=0.0, cell=0.5, most=1.0, unit="frac",
                    values=[[0.0, 0.5], [1.0, None]]),),
    ),
}  # fmt: skip


@pytest.fixture(params=CHARTS)
def chart(request: pytest.FixtureRequest) -> Chart:
    return CHARTS[request.param]


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_an_svg_is_the_same_bytes_again_and_says_no_date(chart: Chart, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = chart.save(tmp_path / "a.svg").read_bytes()
    assert one == chart.save(tmp_path / "b.svg").read_bytes()
    root = ET.fromstring(one)
    assert root.attrib["width"] == "720pt"
    assert b"<dc:date>" not in one


def test_a_png_has_the_size_that_was_asked_for(chart: Chart, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = chart.save(tmp_path / "a.png", width=600, height=300, scale=2)
    assert png_size(path) == (1200, 600)
    assert png_size(chart.save(tmp_path / "b.png", scale=1)) == (1000, chart.height)
    assert (
        path.read_bytes()
        == chart.save(tmp_path / "c.png", width=600, height=300, scale=2).read_bytes()
    )


def test_a_figure_has_the_numbers_in_the_unit_of_its_axis() -> None:
    (bar,) = CHARTS["boxes"].figure().data
    assert [list(bar.base), list(bar.x), list(bar.y)] == [[0, 2], [2, 4], [0, 1]]
    assert CHARTS["boxes"].figure().layout.xaxis.title.text == "time, ms"
    stacked = CHARTS["areas"].figure()
    assert [list(trace.y) for trace in stacked.data] == [[1, 0, 0], [1, 2, 0]]
    assert stacked.layout.yaxis.title.text == "memory, GiB"
    assert list(stacked.layout.yaxis.range) == [0, 4]
    assert [a.text for a in stacked.layout.annotations] == ["capacity", "peak"]
    (heat,) = CHARTS["heat"].figure().data
    assert [list(row) for row in heat.z] == [[0, 50], [100, None]]
    points = CHARTS["points"].figure()
    assert points.layout.xaxis.type == "log"
    assert list(points.data[0].y) == [1, 5]


def test_notebooks_show_it(chart: Chart) -> None:
    page = chart._repr_html_()
    assert "plotly" in page
    assert "https://cdn" not in page.partition("Plotly.newPlot")[2]
    assert chart._repr_mimebundle_() is not None
    assert repr(chart) == f"Chart({chart.title!r}, {len(chart.marks)} marks)"


def test_an_ending_that_is_no_picture_is_refused(chart: Chart, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"\.png or \.svg"):
        chart.save(tmp_path / "a.pdf")


def test_without_matplotlib_the_error_says_what_to_install(
    chart: Chart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "raysim.report.plots.matplotlib_drawing", raising=False)
    monkeypatch.delattr(plots, "matplotlib_drawing", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ScenarioError, match=r"pip install 'raysim\[png\]'"):
        chart.save(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("unit", "reach", "scale"),
    [
        ("s", 0.004, Scale(1e-3, "ms")), ("s", 90.0, Scale(1.0, "s")),
        ("s", 0.0, Scale(1e-6, "us")), ("", 7.0, Scale(1.0, "")), ("s", 200.0, Scale(60.0, "min")),
        ("B", 80 * 2**30, Scale(2.0**30, "GiB")), ("B/s", 5e10, Scale(1e9, "GB/s")),
        ("frac", 0.5, Scale(0.01, "%")),
    ],
)  # fmt: skip
def test_axes_are_written_in_handy_units(unit: str, reach: float, scale: Scale) -> None:
    assert Axis(unit=unit).scale(reach) == scale  # type: ignore[arg-type]


def test_slices_too_thin_to_see_are_drawn_together() -> None:
    pytest.importorskip("matplotlib")
    from raysim.report.plots.matplotlib_drawing import told_apart

    thin = [(0.0, 0.1), (0.11, 0.2), (0.9, 1.0), (2.0, 3.0), (3.05, 4.0)]
    wide = thin[3:]
    assert sorted(*told_apart([thin], 0.2)) == [(0.0, 0.2), (0.9, 1.0), *wide]
    assert told_apart([thin], 0.0) == [thin]


def test_a_kind_that_takes_little_does_not_hide_the_one_it_is_among() -> None:
    pytest.importorskip("matplotlib")
    from raysim.report.plots.matplotlib_drawing import told_apart

    forward = [(i, i + 0.95) for i in range(1000)]
    waits = [(i + 0.95, i + 1.0) for i in range(1000)]
    assert told_apart([forward, waits], 4.0) == [[(0, 1000.0)], []]
    assert told_apart([waits, forward], 0.5) == [waits, forward]
