"""A folder of measured tables: ``<what>.csv`` beside one ``meta.yaml``.

A row is on the disk before the next is measured, so that an interrupt loses nothing; opening the
same folder again on the same machine goes on where it stopped.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raysim.errors import CalibrationError
from raysim.measure.machine import Machine, describe, stolen_s

META = "meta.yaml"
VALUES = ("value", "unit", "repetitions", "low", "high")
SAME = ("cpu", "cores", "gpus")
"""Hardware that rows of one folder must share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One line: what was asked, and the median, 10th and 90th percentile of its repetitions."""

    parameters: dict[str, str]
    value: float
    unit: str
    repetitions: int
    low: float
    high: float

    @classmethod
    def of(cls, parameters: Mapping[str, object], samples: Sequence[float], unit: str) -> Self:
        """The row of these repetitions (at least one)."""
        import numpy as np

        low, middle, high = (float(x) for x in np.percentile(np.asarray(samples), (10, 50, 90)))
        return cls(
            parameters={name: str(value) for name, value in parameters.items()},
            value=middle, unit=unit, repetitions=len(samples), low=low, high=high,
        )  # fmt: skip


class MeasuredTable:
    """``<what>.csv`` of ``folder``, to look up and to append to.

    Use as a context: leaving it, even by an exception, notes the seconds taken in ``meta.yaml``.

    Parameters
    ----------
    folder
        Usually ``validation/data/<hardware>/<date>``; made if absent.
    what
        Name of the table.
    parameters
        Names of the parameter columns; their values identify a row.
    command, notes
        For ``meta.yaml``.
    machine
        By default :func:`raysim.measure.machine.describe` of the folder's disk.

    Raises
    ------
    CalibrationError
        The folder was measured on other hardware or other versions, or its table has other columns.
    """

    def __init__(
        self,
        folder: Path,
        what: str,
        parameters: Sequence[str],
        *,
        command: str,
        notes: str = "",
        machine: Machine | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{what}.csv"
        self.parameters = tuple(parameters)
        self._what, self._command, self._notes = what, command, notes
        self._start_s, self._stolen_s = time.monotonic(), stolen_s()
        self._machine = machine or describe(folder)
        self._compare_machines(read_meta(folder))
        self._rows = self._reopened()
        self._seen = {self._key(row.parameters) for row in self._rows}
        self._write_meta()

    def __enter__(self) -> Self:
        """The table itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Note the seconds taken."""
        self._write_meta()

    def __contains__(self, parameters: Mapping[str, object]) -> bool:
        """Whether such a row was measured, now or before."""
        return self._key(parameters) in self._seen

    def __iter__(self) -> Iterator[MeasuredRow]:
        """Rows in the order measured."""
        return iter(self._rows)

    def __len__(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def add(
        self, parameters: Mapping[str, object], samples: Sequence[float], unit: str
    ) -> MeasuredRow:
        """Append the row of these repetitions; on the disk when this returns."""
        row = MeasuredRow.of(parameters, samples, unit)
        key = self._key(row.parameters)
        numbers = (f"{row.value:.6g}", unit, row.repetitions, f"{row.low:.6g}", f"{row.high:.6g}")
        _append(self.path, [*key, *map(str, numbers)])
        self._rows.append(row)
        self._seen.add(key)
        return row

    def _key(self, parameters: Mapping[str, object]) -> tuple[str, ...]:
        if set(parameters) != set(self.parameters):
            raise ValueError(f"{self._what} has columns {self.parameters}, got {list(parameters)}")
        return tuple(str(parameters[name]) for name in self.parameters)

    def _reopened(self) -> list[MeasuredRow]:
        if not self.path.exists():
            _append(self.path, [*self.parameters, *VALUES])
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:  # the machine stopped in the middle of a line
            os.truncate(self.path, len(whole.encode()))
        columns, rows = _parse(whole, self.path)
        if columns != self.parameters:
            raise CalibrationError(
                f"{self.path}:1: has parameters {', '.join(columns)}, this version measures "
                f"{', '.join(self.parameters)}: give another folder with --out"
            )
        return rows

    def _compare_machines(self, meta: Mapping[str, Any]) -> None:
        if not meta:
            return
        here = self._machine.as_dict()
        found = {f"hardware.{k}": (meta["hardware"].get(k), here["hardware"][k]) for k in SAME} | {
            f"versions.{k}": (meta["versions"].get(k), v) for k, v in here["versions"].items()
        }
        for key, (there, now) in found.items():
            if there != now:
                raise CalibrationError(
                    f"{self.path.parent / META}: {key}: was measured with {there}, "
                    f"this machine has {now}: give another folder with --out"
                )

    def _write_meta(self) -> None:
        """Add the time since it was last written; ``stolen`` is the hypervisor's, of all CPUs."""
        start_s, self._start_s = self._start_s, time.monotonic()
        before_s, self._stolen_s = self._stolen_s, stolen_s()
        passed = {
            "seconds": self._start_s - start_s, "stolen_cpu_seconds": self._stolen_s - before_s,
        }  # fmt: skip
        meta = read_meta(self.path.parent) or self._machine.as_dict()
        tables = meta.setdefault("tables", {})
        before = tables.get(self._what, {})
        tables[self._what] = {
            "command": self._command,
            "date": time.strftime("%Y-%m-%d"),
            **{key: round(float(before.get(key, 0.0)) + s, 1) for key, s in passed.items()},
            "notes": self._notes,
        }
        _dump(meta, self.path.parent / META)


def read_rows(path: Path) -> list[MeasuredRow]:
    """Rows of a measured CSV.

    Raises
    ------
    CalibrationError
        The file is not there or is not such a table; says file and line.
    """
    if not path.is_file():
        raise CalibrationError(f"{path}: no such table")
    return _parse(path.read_text(encoding="utf-8"), path)[1]


def read_meta(folder: Path) -> dict[str, Any]:
    """``meta.yaml`` of a folder as ``{hardware, versions, tables: {what: ...}}``; {} if absent."""
    from ruamel.yaml import YAML

    path = folder / META
    if not path.exists():
        return {}
    meta = YAML(typ="safe", pure=True).load(path)
    if not isinstance(meta, dict) or not {"hardware", "versions"} <= meta.keys():
        raise CalibrationError(f"{path}: needs the keys hardware and versions")
    return meta


def _parse(text: str, path: Path) -> tuple[tuple[str, ...], list[MeasuredRow]]:
    """Parameter columns and rows of a CSV."""
    reader = csv.reader(io.StringIO(text))
    head = next(reader, [])
    count = len(head) - len(VALUES)
    if count < 1 or tuple(head[count:]) != VALUES:
        raise CalibrationError(f"{path}:1: the last columns must be {','.join(VALUES)}")
    rows = []
    for cells in reader:
        try:
            parameters = dict(zip(head[:count], cells[:count], strict=True))
            value, unit, repetitions, low, high = cells[count:]
            rows.append(
                MeasuredRow(
                    parameters=parameters,
                    value=float(value),
                    unit=unit,
                    repetitions=int(repetitions),
                    low=float(low),
                    high=float(high),
                )
            )
        except ValueError as error:
            raise CalibrationError(f"{path}:{reader.line_num}: {error}") from None
    return tuple(head[:count]), rows


def _append(path: Path, cells: Sequence[str]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    with path.open("a", encoding="utf-8") as file:
        file.write(line.getvalue())
        file.flush()
        os.fsync(file.fileno())


def _dump(meta: Mapping[str, Any], path: Path) -> None:
    """Write to a neighbour, then rename: a reader sees the old file or the new one."""
    from ruamel.yaml import YAML

    yaml: Any = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.width = 100
    text = io.StringIO()
    yaml.dump(dict(meta), text)
    beside = path.with_suffix(".new")
    beside.write_text(text.getvalue(), encoding="utf-8")
    beside.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """What stands beside the tables by name; empty where nothing does yet."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def write_json(path: Path, content: Any) -> None:
    """Keep it beside the tables."""
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
