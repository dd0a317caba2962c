"""Trials on disk: a Parquet file for every so many, in ``parts/`` of a plan's folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raysim.planner.trials import Trial, of_plain

PART = 64
"""Trials per file: what a crash may cost; an interrupt costs nothing."""
PART_OF_ESTIMATES = 2048
AS_JSON = ("choice", "metrics", "missed", "spread")
"""Columns whose keys differ from search to search."""
Key = tuple[int, bool]
"""A point's number, and whether it was only estimated."""


class Store:
    """Trials of one search. Files are written aside and put in place whole."""

    def __init__(self, folder: Path) -> None:
        self.parts = folder / "parts"
        self._held: dict[bool, list[Trial]] = {False: [], True: []}

    def read(self) -> dict[Key, Trial]:
        """Those of earlier searches."""
        files = sorted(self.parts.glob("*.parquet"))
        if not files:
            return {}
        import pyarrow.parquet as pq

        found = {}
        for file in files:
            folded = file.name.startswith("folded")
            for row in pq.read_table(file).to_pylist():
                trial = of_plain(row | {key: json.loads(row[key]) for key in AS_JSON if key in row})
                found[trial.number, folded] = trial
        return found

    def add(self, trial: Trial, *, folded: bool = False) -> None:
        """Keep one more."""
        held = self._held[folded]
        held.append(trial)
        if len(held) >= (PART_OF_ESTIMATES if folded else PART):
            self._write(folded=folded)

    def flush(self) -> None:
        """Write what is held."""
        for folded in (False, True):
            if self._held[folded]:
                self._write(folded=folded)

    def _write(self, *, folded: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        held = self._held[folded]
        self.parts.mkdir(parents=True, exist_ok=True)
        kind = "folded" if folded else "played"
        name = self.parts / f"{kind}-{held[0].number:08d}-{len(held)}.parquet"
        aside = name.with_suffix(".new")
        pq.write_table(pa.Table.from_pylist([_row(t) for t in held]), aside)
        aside.replace(name)
        held.clear()


def _row(trial: Trial) -> dict[str, Any]:
    plain = trial.plain()
    return plain | {key: json.dumps(plain[key]) for key in AS_JSON}
