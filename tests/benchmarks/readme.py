"""The few rows of RESULTS.md that README.md shows, between markers; `make bench` writes them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "tests/benchmarks/RESULTS.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- speed, by make bench -->\n", "<!-- speed ends -->\n"
SHOWN = (
    ("first answer", ""), ("no-op tasks", "1,000,000 tasks"), ("no-op tasks beside SimGrid", ""),
    ("Serve", "a day"), ("week of failures", ""), ("plan, screened", ""), ("fork", ""),
)  # fmt: skip
"""Name of a benchmark, and how what was done begins."""


def short_table(results: str) -> str:
    """The rows that README.md shows, in its order; those that were not measured are not there."""
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in results.splitlines()
            if line.startswith("| ")]  # fmt: skip
    lines = [
        "| [one core](tests/benchmarks/RESULTS.md) | what | rate | beside |",
        "|---|---|---|---|",
    ]
    for name, begins in SHOWN:
        for row in rows:
            if row[0] == name and row[1].startswith(begins):
                _, what, _, rate, ratio, yardstick, _ = row
                beside = f"{ratio.replace(' x', '')} x {yardstick}" if ratio else ""
                lines.append(f"| {name} | {what} | {rate} | {beside} |")
    return "\n".join(lines) + "\n"


def shown(readme: str) -> str:
    """What stands between the markers."""
    found = re.search(f"{re.escape(BEGIN)}(.*){re.escape(END)}", readme, re.DOTALL)
    assert found is not None, "README.md has no place for the table"
    return found[1]


def with_table(readme: str, results: str) -> str:
    """README.md with the table as it now is."""
    return readme.replace(shown(readme), short_table(results))


def write() -> None:
    """Put the rows of RESULTS.md into README.md."""
    text = with_table(README.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")
