"""Charts of a sweep's table: a row per trial, its keys, then what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysim.errors import ScenarioError
from raysim.report.plots.chart import Chart
from raysim.report.plots.marks import Axis, Line, Mark, Notes, Points, Unit
from raysim.results.targets import METRICS
from raysim.scenario.overrides import labels

if TYPE_CHECKING:
    import pandas as pd

NOT_KEYS = {
    "status", "why", "strategy", "gpus", "nodes", "bound_by", "missed", "likely", "run_id",
    "metrics",
}  # fmt: skip
"""Columns beside the space's keys and the metrics."""
MORE_IS_BETTER = (
    "tokens_per_s", "samples_per_s", "mfu", "hfu", "flops_per_s", "goodput", "requests_per_s",
    "per_usd",
)  # fmt: skip
UNITS: dict[str, Unit] = {"usd": "usd", "mfu": "frac", "hfu": "frac", "memory_peak": "B"}
MOST_NAMED = 8
"""Best trials whose choices are written beside them."""
DONE, MISSED, FRONT = "#0072b2", "#c9ced4", "#d55e00"


@dataclass(frozen=True)
class SweepPlots:
    """``answer.plot``, and ``frame.raysim`` of a sweep's table."""

    frame: pd.DataFrame

    def pareto(self, x: str = "days", y: str = "usd") -> Chart:
        """Every trial that ran by two metrics, and those that no other beats in both.

        Parameters
        ----------
        x, y
            Columns with numbers.

        Raises
        ------
        ScenarioError
            There is no such column, or no trial has both.
        """
        rows = self._with(x, y)
        met = [row for row in rows if not row.get("missed")]
        best = front(met or rows, x, y)
        marks: list[Mark] = [
            Points(
                name=name, color=color, x=[row[x] for row in some], y=[row[y] for row in some],
                tips=[self._said(row) for row in some],
            )
            for name, color, some in (
                ("misses a target", MISSED, [row for row in rows if row.get("missed")]),
                ("trial", DONE, met),
            )
            if some
        ]  # fmt: skip
        xs, ys = [row[x] for row in best], [row[y] for row in best]
        marks.append(Line(name="no other is better in both", color=FRONT, x=xs, y=ys))
        marks.append(Points(name="", color=FRONT, x=xs, y=ys, tips=[self._said(r) for r in best]))
        if len(best) <= MOST_NAMED:
            differ = [key for key in self.keys if len({str(row[key]) for row in best}) > 1]
            named = [", ".join(_choice(row, differ or self.keys)) for row in best]
            among = [row[x] for row in rows]
            marks.append(Notes(x=xs, y=ys, texts=named, color=FRONT, among=among))
        return Chart(
            title=f"{_word(y)} by {_word(x)}, {len(rows)} of {len(self.frame)} trials",
            x=Axis(label=_label(x), unit=UNITS.get(x, ""), zero=False),
            y=Axis(label=_label(y), unit=UNITS.get(y, ""), zero=False), marks=tuple(marks),
        )  # fmt: skip

    def parallel(self, *metrics: str) -> Chart:
        """Every trial as a line over its keys and metrics, coloured by the last of them.

        Parameters
        ----------
        metrics
            Columns to end with; by default days and dollars, or the step.
        """
        chosen = metrics or tuple(m for m in ("days", "usd") if self._known(m))
        chosen = chosen or ("step_seconds",)
        rows = self._with(*chosen)
        columns = [*self.keys, *chosen]
        places = {c: _places([row[c] for row in rows], by_size=c in chosen) for c in columns}
        order = sorted(rows, key=lambda row: float(row[chosen[-1]]), reverse=not _more(chosen[-1]))
        marks: list[Mark] = []
        for n, row in enumerate(order):
            share = n / max(1, len(order) - 1)
            ys = [places[name][str(row[name])] for name in columns]
            marks.append(Line(
                name="", color=_shade(share), x=[float(i) for i in range(len(columns))], y=ys,
                tip=self._said(row), alpha=0.85,
            ))  # fmt: skip
        marks += [_values(i, places[c], ends=c in chosen) for i, c in enumerate(columns)]
        ticks = tuple((float(i), label) for i, label in enumerate(labels(columns).values()))
        return Chart(
            title=f"{len(rows)} trials; the darker, the better {_word(chosen[-1])}",
            x=Axis(ticks=ticks, zero=False), y=Axis(bare=True, zero=False),
            marks=tuple(marks), legend=False,
        )  # fmt: skip

    @property
    def keys(self) -> list[str]:
        """Keys of the space of which more than one value was tried."""
        mine = [c for c in self.frame.columns if c not in NOT_KEYS and c not in METRICS]
        return [c for c in mine if self.frame[c].astype(str).nunique() > 1]

    def _known(self, column: str) -> bool:
        return column in self.frame.columns and bool(self.frame[column].notna().any())

    def _with(self, *columns: str) -> list[dict[str, Any]]:
        """Rows of trials that ran, with a number in each column.

        One that runs out of memory has its metrics too, as if it fitted.
        """
        for column in columns:
            if not self._known(column):
                numbers = [c for c in METRICS if self._known(c)]
                raise ScenarioError(f"no trial has {column!r}; they have {', '.join(numbers)}")
        rows: list[Any] = self.frame.to_dict("records")
        ran = [r for r in rows if r.get("status", "ok") == "ok"]
        found = [r for r in ran if all(_number(r[c]) for c in columns)]
        if not found:
            raise ScenarioError(f"no trial has {' and '.join(columns)} together")
        return found

    def _said(self, row: dict[str, Any]) -> str:
        found = [
            f"{m} {row[m]:,.4g}" for m in ("days", "usd", "step_seconds") if _number(row.get(m))
        ]
        return "<br>".join(
            [", ".join(_choice(row, self.keys)), ", ".join(found), str(row.get("missed") or "")]
        )


def _choice(row: dict[str, Any], keys: Sequence[str]) -> list[str]:
    short = labels(keys)
    return [f"{short[key]} {row[key]}" for key in keys]


def front(rows: Sequence[dict[str, Any]], x: str, y: str) -> list[dict[str, Any]]:
    """Rows that no other beats in both columns, by x."""
    sign_x, sign_y = (-1.0 if _more(metric) else 1.0 for metric in (x, y))
    best, found = math.inf, []
    for row in sorted(rows, key=lambda row: (sign_x * row[x], sign_y * row[y])):
        if sign_y * row[y] < best:
            best = sign_y * row[y]
            found.append(row)
    return sorted(found, key=lambda row: float(row[x]))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _more(metric: str) -> bool:
    return any(part in metric for part in MORE_IS_BETTER)


def _places(values: Sequence[Any], *, by_size: bool) -> dict[str, float]:
    """Height of each value on its axis: by size, or one after the other."""
    known = {str(v): v for v in values}
    if by_size:
        low, high = min(known.values()), max(known.values())
        return {k: (v - low) / (high - low) if high > low else 0.5 for k, v in known.items()}
    numbers = all(_number(v) and not isinstance(v, bool) for v in known.values())
    ordered = sorted(known, key=lambda text: known[text] if numbers else text)
    return {
        text: (i / (len(ordered) - 1) if len(known) > 1 else 0.5) for i, text in enumerate(ordered)
    }


def _values(column: int, places: dict[str, float], *, ends: bool) -> Notes:
    """What stands beside an axis: every value, or the lowest and the highest."""
    order = sorted(places, key=places.__getitem__)
    shown = list(dict.fromkeys((order[0], order[-1]))) if ends else order
    texts = [_written(float(text)) for text in shown] if ends else shown
    heights = [places[text] for text in shown]
    return Notes(x=[float(column)] * len(shown), y=heights, texts=texts)


def _written(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def _shade(share: float) -> str:
    """From light to dark blue."""
    ends = ((0xD6, 0x00), (0xE4, 0x45), (0xF0, 0x7A))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in ends)


def _axis_name(column: str) -> str:
    return column.rpartition(".")[2].replace("_", " ")


def _word(metric: str) -> str:
    return {"usd": "cost"}.get(metric, _axis_name(metric))


def _label(metric: str) -> str:
    return "cost" if metric == "usd" else _axis_name(metric)
