"""Numbers of a summary as text, whatever is in it: a dash where a number is missing.

The units are those of `raysim.units`; here are shares, dollars and FLOP/s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from raysim.units import format_bytes, format_bytes_per_s, format_count, format_seconds

DASH = "-"
Table = Mapping[str, Any]


def number(value: Any) -> float | None:
    """``value`` if it is a finite number, else None (booleans and text are not numbers)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def table(value: Any) -> Table:
    """``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def rows(value: Any) -> list[Table]:
    """The mappings in ``value`` if it is a list, else nothing."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def shown(form: Callable[[float], str]) -> Callable[[Any], str]:
    """``form`` for numbers; a dash where there is none, the text itself where it is text."""

    def show(value: Any) -> str:
        known = number(value)
        if known is not None:
            return form(known)
        return value if isinstance(value, str) and value else DASH

    return show


def plain_text(value: float) -> str:
    """A bare number: whole with thousands separators, else three significant digits."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _usd(value: float) -> str:
    """Dollars: cents below a hundred, three significant digits below ten cents."""
    if abs(value) >= 100:
        return f"${value:,.0f}"
    return (
        f"${value:.2f}" if abs(value) >= 1 or value * 100 == int(value * 100) else f"${value:.3g}"
    )


def _percent(value: float) -> str:
    """A share of one as per cent, one digit after the point below ten."""
    share = value * 100
    return f"{share:,.0f} %" if abs(share) >= 99.95 else f"{share:,.1f} %"


def _tflops(value: float) -> str:
    """A rate in TFLOP/s, whatever its size, so that two of them compare at a glance."""
    return f"{value / 1e12:,.0f} TFLOP/s" if value >= 10e12 else f"{value / 1e12:,.3g} TFLOP/s"


plain = shown(plain_text)
percent = shown(_percent)
usd = shown(_usd)
tflops = shown(_tflops)
size = shown(format_bytes)
rate = shown(format_bytes_per_s)
count = shown(format_count)
seconds = shown(lambda value: format_seconds(value) if value else "0 s")


_BY_SUFFIX: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("_bytes_per_s", rate), ("_bytes", size), ("_flops_per_s", tflops), ("_usd", usd),
    ("_usd_per_hour", shown(lambda value: f"{_usd(value)}/h")),
    ("_ns", shown(lambda value: format_seconds(value / 1e9))), ("_s", seconds),
    ("_frac", percent), ("_share", percent),
)  # fmt: skip


def quantity(name: Any, value: Any) -> str:
    """A value printed by the unit in its name: ``A100 memory_bytes``, ``T4 flops_per_s.fp32``."""
    base = f"_{name}".rpartition(" ")[2].partition(".")[0]
    for suffix, form in _BY_SUFFIX:
        if f"_{base}".endswith(suffix):
            return form(value)
    return plain(value)


CELLS: dict[str, Callable[[Any], str]] = {
    "text": shown(plain_text), "count": plain, "seconds": seconds, "bytes": size, "share": percent,
    "usd": usd, "per_s": shown(lambda value: f"{plain_text(value)}/s"), "bytes_per_s": rate,
}  # fmt: skip
"""How a cell of a library's table is written, by its unit (``raylibs.report``)."""


def cell(value: Any, unit: str) -> str:
    """One value of a table as a person reads it."""
    return CELLS[unit](value)


def profile_words(trust: Table) -> list[str]:
    """What the Trust line says of the profile; nothing when there is none."""
    said = table(trust.get("profile"))
    if not said:
        return []
    made = f" of {said['made']}" if said["made"] else ""
    return [f"{said['constants']} constants from profile {said['name']}{made}"]


def likely_words(certainty: Table) -> list[str]:
    """Where nine of ten measured values would lie, and of what rows that is; [] if unknown."""
    said = [
        f"{name} {form(found['low'])} to {form(found['high'])}"
        for name, key, form in (
            ("step", "step_seconds", format_seconds),
            ("tokens/s", "tokens_per_s", _three),
            ("peak", "memory_peak_bytes", format_bytes),
        )
        if (found := table(certainty.get(key)))
    ]
    rows_of = [
        f"{name} of {plain_text(found['rows'])} runs: {found['kind']}"
        for name, key in (("time", "step_seconds"), ("memory", "memory_peak_bytes"))
        if (found := table(certainty.get(key)))
    ]
    return [*said, *rows_of]


def standing_words(certainty: Table) -> str:
    """``extrapolated: 512 GPUs, measured up to 384``; empty where nothing is known."""
    standing, reasons = certainty.get("standing"), certainty.get("reasons") or []
    if standing == "interpolated":
        return "interpolated: runs on this GPU, of this size and engine, were compared"
    return f"{standing}: {'; '.join(map(str, reasons))}" if standing else ""


def _three(value: float) -> str:
    """Three significant digits, thousands separated."""
    return f"{float(f'{value:.3g}'):,.{0 if value >= 100 else 2}f}"


def script_json(data: object) -> str:
    """JSON that may stand inside a script element: nothing in it can close the element."""
    text = json.dumps(data, separators=(",", ":"), sort_keys=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
