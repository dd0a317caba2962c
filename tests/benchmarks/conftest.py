"""Writes the table of all benchmarks when the last has run, if ``make bench`` asks for it.

And its first rows into README.md.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.benchmarks import readme, table


def pytest_sessionfinish() -> None:
    """Write what was measured."""
    path = os.environ.get("RAYSIM_BENCH_TABLE")
    if path and (table.ROWS or table.LAWS):
        Path(path).write_text(table.text(), encoding="utf-8")
        if Path(path).resolve() == readme.RESULTS:
            readme.write()
