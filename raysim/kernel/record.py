"""Records of what happened: spans, counters and instants, appended and never changed.

The vocabulary is that of trace viewers (Perfetto, Chrome's ``trace_event``): a *track* is a row on
the screen, named from outside in, such as ``("node-0", "gpu-3", "compute")``.

A recorder only listens: whether it keeps anything or nothing never changes a run.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

Track = tuple[str, ...]


class Span(NamedTuple):
    """Something that took from ``start_ns`` to ``end_ns``."""

    track: Track
    name: str
    category: str
    start_ns: int
    end_ns: int
    args: Mapping[str, Any] | None = None


class Counter(NamedTuple):
    """A quantity that has ``value`` from ``t_ns`` on."""

    track: Track
    name: str
    t_ns: int
    value: float


class Instant(NamedTuple):
    """Something that happened at one moment."""

    track: Track
    name: str
    category: str
    t_ns: int
    args: Mapping[str, Any] | None = None


class Recorder(Protocol):
    """Where records go."""

    @property
    def enabled(self) -> bool:
        """False when records are thrown away: then skip the work of making them."""

    def span(
        self,
        track: Track,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a ``Span``."""

    def counter(self, track: Track, name: str, t_ns: int, value: float) -> None:
        """Record a ``Counter``."""

    def instant(
        self,
        track: Track,
        name: str,
        category: str,
        t_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an ``Instant``."""


class NullRecorder:
    """Keeps nothing."""

    enabled = False

    def span(
        self,
        track: Track,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep nothing."""

    def counter(self, track: Track, name: str, t_ns: int, value: float) -> None:
        """Keep nothing."""

    def instant(
        self,
        track: Track,
        name: str,
        category: str,
        t_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep nothing."""


class _Ids(dict[Any, int]):
    """Numbers distinct values in order of appearance."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


class _Table:
    """Rows appended as tuples, packed into typed columns block by block.

    ``kinds`` gives one letter per field: ``s`` repeated value, stored once; ``q`` int; ``d`` float;
    ``o`` object that is mostly None.
    """

    def __init__(self, fields: tuple[str, ...], kinds: str, block: int) -> None:
        self.fields, self.kinds, self.block = fields, kinds, block
        self.rows: list[tuple[Any, ...]] = []
        self.packed = 0
        self.ids = [_Ids() for _ in fields]
        self.columns: list[Any] = [
            {} if kind == "o" else array("l" if kind == "s" else kind) for kind in kinds
        ]

    def append(self, row: tuple[Any, ...]) -> None:
        self.rows.append(row)
        if len(self.rows) >= self.block:
            self.pack()

    def pack(self) -> None:
        """Move the rows into columns."""
        if not self.rows:
            return
        for kind, ids, column, values in zip(
            self.kinds, self.ids, self.columns, zip(*self.rows, strict=True), strict=True
        ):
            if kind == "s":
                column.extend(map(ids.__getitem__, values))
            elif kind == "o":
                column.update((self.packed + i, v) for i, v in enumerate(values) if v is not None)
            else:
                column.extend(values)
        self.packed += len(self.rows)
        self.rows.clear()

    def unpacked(self) -> dict[str, list[Any]]:
        """Every field as a list of plain values."""
        self.pack()
        lists: dict[str, list[Any]] = {}
        for field, kind, ids, column in zip(
            self.fields, self.kinds, self.ids, self.columns, strict=True
        ):
            if kind == "s":
                lists[field] = list(map(list(ids).__getitem__, column))
            elif kind == "o":
                lists[field] = [column.get(i) for i in range(self.packed)]
            else:
                lists[field] = column.tolist()
        return lists


class ColumnRecorder:
    """Keeps everything, in columns of some 30 bytes a row; repeated names are stored once."""

    enabled = True

    def __init__(self, *, block: int = 1 << 16) -> None:
        self._spans = _Table(Span._fields, "sssqqo", block)
        self._counters = _Table(Counter._fields, "ssqd", block)
        self._instants = _Table(Instant._fields, "sssqo", block)

    def __len__(self) -> int:
        """Records kept."""
        tables = (self._spans, self._counters, self._instants)
        return sum(table.packed + len(table.rows) for table in tables)

    def span(
        self,
        track: Track,
        name: str,
        category: str,
        start_ns: int,
        end_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a ``Span``; ``args`` is kept as it is, so do not change it afterwards."""
        assert start_ns <= end_ns, f"{track} {name}: ends at {end_ns}, before {start_ns}"
        self._spans.append((track, name, category, start_ns, end_ns, args))

    def counter(self, track: Track, name: str, t_ns: int, value: float) -> None:
        """Record a ``Counter``."""
        self._counters.append((track, name, t_ns, value))

    def instant(
        self,
        track: Track,
        name: str,
        category: str,
        t_ns: int,
        args: Mapping[str, Any] | None = None,
    ) -> None:
        """Record an ``Instant``."""
        self._instants.append((track, name, category, t_ns, args))

    def spans(self) -> list[Span]:
        """All spans, in the order recorded."""
        return list(map(Span, *self.span_columns().values()))

    def counters(self) -> list[Counter]:
        """All counter samples, in the order recorded."""
        return list(map(Counter, *self.counter_columns().values()))

    def instants(self) -> list[Instant]:
        """All instants, in the order recorded."""
        return list(map(Instant, *self.instant_columns().values()))

    def span_columns(self) -> dict[str, list[Any]]:
        """Spans as one list per field, as a data frame wants them."""
        return self._spans.unpacked()

    def counter_columns(self) -> dict[str, list[Any]]:
        """Counter samples as one list per field."""
        return self._counters.unpacked()

    def instant_columns(self) -> dict[str, list[Any]]:
        """Instants as one list per field."""
        return self._instants.unpacked()
