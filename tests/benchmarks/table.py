"""The table of all benchmarks: what was done, CPU seconds, rate, ratio to a yardstick."""

from __future__ import annotations

import datetime as dt
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence
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
    against = "" if ratio is None else f", {times(ratio)} {yardstick}"
    print(f"\n{name}: {what}: {cpu_s:.3g} CPU s, {rate}{against}")


def times(ratio: float) -> str:
    """``1.24 x``; two digits of what is small."""
    return f"{ratio:.2f} x" if ratio >= 0.01 else f"{ratio:.2g} x"


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


INTRODUCTION = """# Speed, measured

`make bench` writes this table: CPU seconds of one core, each benchmark in a process of its own. A
ratio is between two things run one after the other in the same process, and is what carries over to
another machine. Measured last on """
HEADS = (
    "| benchmark | what | CPU s | rate | ratio | yardstick | by |\n|---|---|---|---|---|---|---|",
    "## How it grows\n\n| what | points | slope | remark | by |\n|---|---|---|---|---|",
)


def lines(by: str) -> list[list[str]]:
    """Lines of both tables, for what the benchmarks of a file have measured."""
    rows = []
    for r in ROWS:
        ratio = "" if r.ratio is None else times(r.ratio)
        rows.append(
            f"| {r.name} | {r.what} | {r.cpu_s:.3g} | {r.rate} | {ratio} | {r.yardstick} | {by} |"
        )
    laws = []
    for x in LAWS:
        points = ", ".join(f"{size:g}: {value:.3g}" for size, value in x.points)
        laws.append(f"| {x.what} | {points} | {x.slope:.2f} | {x.why} | {by} |")
    return [rows, laws]


def merged(before: str, measured: Sequence[Sequence[str]], files: Collection[str]) -> str:
    """The whole file: what was measured now, and of ``before`` what other files measured.

    Parameters
    ----------
    before
        The file as it was. Measured on another machine, or with other versions, none of it stays.
    measured
        Lines of both tables.
    files
        Whose lines are replaced.
    """
    here = machine()
    kept: list[list[str]] = [[], []]
    if f": {here}." in before:
        for which, part in enumerate(before.split("## How it grows")):
            own = [x for x in part.splitlines() if x.startswith("| ")][1:]  # the first is the head
            kept[which] = [x for x in own if x.split(" | ")[-1].removesuffix(" |") not in files]
    parts = [f"{INTRODUCTION}{dt.datetime.now(dt.UTC):%Y-%m-%d}: {here}."]
    for head, old, new in zip(HEADS, kept, measured, strict=True):
        parts.append("\n".join([head, *sorted([*old, *new])]))
    return "\n\n".join(parts) + "\n"
