"""The table of all benchmarks: what was done, CPU seconds, rate, ratio to a yardstick.

``make bench`` sets ``RAYSIM_BENCH_TABLE`` to the file to write. Nothing is written otherwise.
"""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("simpy", "numpy", "networkx", "pandas", "pytest-benchmark")


class Row(NamedTuple):
    """One line of the table."""

    name: str
    what: str
    cpu_s: float
    rate: str
    """With its unit."""
    ratio: float | None
    """How many times as fast as the yardstick, in the same process."""
    yardstick: str


class Law(NamedTuple):
    """How time or memory grows."""

    what: str
    points: tuple[tuple[float, float], ...]
    """(size, seconds or bytes)."""
    slope: float
    """Of the logarithms, by least squares."""
    why: str
    """The reason for a slope above 1.1, or a remark."""


ROWS: list[Row] = []
LAWS: list[Law] = []


def row(
    name: str,
    what: str,
    cpu_s: float,
    rate: str,
    ratio: float | None = None,
    yardstick: str = "",
) -> None:
    """Print one result and keep it for the table."""
    ROWS.append(Row(name, what, cpu_s, rate, ratio, yardstick))
    against = "" if ratio is None else f", {ratio:.2f} x {yardstick}"
    print(f"\n{name}: {what}: {cpu_s:.3g} CPU s, {rate}{against}")


def law(what: str, points: Iterable[tuple[float, float]], why: str = "") -> float:
    """Fit, print and keep how something grows; the slope."""
    from numpy import log, polyfit

    points = tuple(points)
    slope = float(polyfit(log([x for x, _ in points]), log([y for _, y in points]), 1)[0])
    LAWS.append(Law(what, points, slope, why))
    print(f"\n{what}: slope {slope:.2f} over " + ", ".join(f"{x:g}: {y:.3g}" for x, y in points))
    return slope


def cpu_s(run: Callable[[], object]) -> float:
    """CPU seconds of ``run()``."""
    start_s = time.process_time()
    run()
    return time.process_time() - start_s


def best_cpu_s(make: Callable[[], Callable[[], object]], rounds: int = 3) -> float:
    """The least CPU seconds of what ``make`` returns, set-up excluded."""
    return min(cpu_s(make()) for _ in range(rounds))


def machine() -> str:
    """Processor, cores, interpreter and packages, for the head of the table."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    parts = [f"{name} {version(name)}" for name in PACKAGES]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{model}, {os.cpu_count()} cores, {sys.platform}; {python}, {', '.join(parts)}"


def text() -> str:
    """The whole file."""
    lines = [
        "# Speed, measured",
        "",
        f"`make bench` writes this table. {dt.datetime.now(dt.UTC):%Y-%m-%d}: {machine()}.",
        "CPU seconds of one core. A ratio is between two things run one after the other in the",
        "same process, and is what carries over to another machine.",
        "",
        "| benchmark | what | CPU s | rate | ratio | yardstick |",
        "|---|---|---|---|---|---|",
    ]
    for r in sorted(ROWS):
        ratio = "" if r.ratio is None else f"{r.ratio:.2f} x"
        lines.append(
            f"| {r.name} | {r.what} | {r.cpu_s:.3g} | {r.rate} | {ratio} | {r.yardstick} |"
        )
    if LAWS:
        lines += [
            "",
            "## How it grows",
            "",
            "| what | points | slope | remark |",
            "|---|---|---|---|",
        ]
        for x in sorted(LAWS):
            points = ", ".join(f"{size:g}: {value:.3g}" for size, value in x.points)
            lines.append(f"| {x.what} | {points} | {x.slope:.2f} | {x.why} |")
    return "\n".join(lines) + "\n"
