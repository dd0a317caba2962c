"""Records as tidy tables: one row per thing that happened, times in whole nanoseconds, ids as text.

Columns need neither pandas nor pyarrow, so that a run stays cheap; `Frames` makes a pandas frame
when somebody looks at it. `SCHEMA` is the data dictionary: what each column holds.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

    from raysim.kernel.record import ColumnRecorder

Kind = Literal["text", "int", "float"]
Columns = dict[str, list[Any]]

_WHERE: dict[str, tuple[Kind, str]] = {
    "rank": ("text", "global rank: node index x GPUs per node + local index"),
    "node": ("text", "node, as the trace names it"),
    "gpu": ("text", "GPU within the node"),
}
_TIMES: dict[str, tuple[Kind, str]] = {
    "start_ns": ("int", "virtual time it started"),
    "end_ns": ("int", "virtual time it ended"),
    "duration_ns": ("int", "end_ns - start_ns"),
}
_ARGS: dict[str, tuple[Kind, str]] = {
    "step": ("int", "optimizer step, from 0"),
    "micro_batch": ("int", "micro-batch within the step, from 0"),
    "bytes": ("int", "size of the buffer moved"),
    "flops": ("float", "floating-point operations done"),
    "op": ("text", "collective operation"),
    "bus_bytes_per_s": ("float", "bus bandwidth as nccl-tests defines it"),
}
SCHEMA: dict[str, dict[str, tuple[Kind, str]]] = {
    "spans": {
        **_WHERE,
        "stream": ("text", "GPU stream or host thread"),
        "name": ("text", "what ran"),
        "category": ("text", "forward, backward, recompute, collective, p2p, copy, optimizer, ..."),
        **_TIMES,
        **_ARGS,
        "args": ("text", "everything else known about it, as JSON"),
    },
    "collectives": {
        **_WHERE,
        "stream": ("text", "communication stream"),
        "name": ("text", "what was communicated"),
        **_TIMES,
        **_ARGS,
    },
    "steps": {
        "step": ("int", "optimizer step, from 0"),
        **_WHERE,
        **_TIMES,
        "category": ("text", "category of the spans summed in busy_ns"),
        "busy_ns": ("int", "sum of the durations of those spans; streams overlap"),
    },
    "memory": {
        **_WHERE,
        "t_ns": ("int", "virtual time of the change"),
        "category": ("text", "memory category, in torch memory_viz words where they exist"),
        "bytes": ("int", "bytes of the category from then on"),
    },
    "links": {
        "link": ("text", "link of the topology"),
        "t_ns": ("int", "virtual time of the change"),
        "bytes_per_s": ("float", "rate from then on, one direction"),
    },
    "instants": {
        **_WHERE,
        "t_ns": ("int", "virtual time"),
        "name": ("text", "what happened"),
        "category": ("text", "kind of event"),
        "args": ("text", "everything else known about it, as JSON"),
    },
}
_COLLECTIVE = {"collective", "p2p"}


class Frames(Mapping[str, "pd.DataFrame"]):
    """The tables of one run, each made on first use: ``frames["memory"]``."""

    def __init__(self, records: ColumnRecorder | None, gpus_per_node: int) -> None:
        self.records = records
        self.gpus_per_node = gpus_per_node
        self._made: dict[str, pd.DataFrame] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        """The pandas frame of that name; KeyError lists the names."""
        if name not in SCHEMA:
            raise KeyError(f"{name!r} is not one of {', '.join(SCHEMA)}")
        if name not in self._made:
            self._made[name] = _to_pandas(name, self.columns(name))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(SCHEMA)

    def __len__(self) -> int:
        return len(SCHEMA)

    def columns(self, name: str) -> Columns:
        """The same table as plain lists, in the order of `SCHEMA`."""
        if self.records is None:
            return {column: [] for column in SCHEMA[name]}
        return _MAKERS[name](self.records, self.gpus_per_node)

    def write(self, directory: Path) -> list[Path]:
        """Write every table that has rows as ``directory/<name>.parquet``."""
        written = []
        for name in SCHEMA:
            columns = self.columns(name)
            if next(iter(columns.values())):
                written.append(_write_parquet(name, columns, directory / f"{name}.parquet"))
        return written


@functools.lru_cache(maxsize=65536)
def _where(track: tuple[str, ...], gpus_per_node: int) -> tuple[str | None, str, str | None]:
    """Rank, node and GPU of a track such as ("node-0", "gpu-3", "compute")."""
    node = track[0]
    gpu = track[1] if len(track) > 1 and track[1].startswith("gpu-") else None
    index = node.rpartition("-")[2]
    if gpu is None or not index.isdecimal() or not gpu[4:].isdecimal():
        return None, node, gpu
    return str(int(index) * gpus_per_node + int(gpu[4:])), node, gpu


def _table(name: str, rows: list[tuple[Any, ...]]) -> Columns:
    names = SCHEMA[name]
    if not rows:
        return {column: [] for column in names}
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _json(args: Mapping[str, Any]) -> str | None:
    return json.dumps(args, default=str, sort_keys=True) if args else None


def _int(value: float | None) -> int | None:
    return None if value is None else round(value)


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


_CAST: dict[Kind, Callable[[Any], Any]] = {"int": _int, "float": _float, "text": lambda v: v}


def _span_columns(columns: Columns, gpus_per_node: int) -> Columns:
    """All columns a span can give, from the recorder's columns."""
    tracks, given = columns["track"], [args or {} for args in columns["args"]]
    places = [_where(track, gpus_per_node) for track in tracks]
    times = zip(columns["start_ns"], columns["end_ns"], strict=True)
    made: Columns = {
        "rank": [p[0] for p in places],
        "node": [p[1] for p in places],
        "gpu": [p[2] for p in places],
        "stream": [t[-1] if len(t) > 1 else None for t in tracks],
        "name": columns["name"],
        "category": columns["category"],
        "start_ns": columns["start_ns"],
        "end_ns": columns["end_ns"],
        "duration_ns": [end - start for start, end in times],
    }
    for key, (kind, _) in _ARGS.items():
        cast = _CAST[kind]
        made[key] = [cast(args.get(key)) for args in given]
    return made


def _rest(args: Mapping[str, Any] | None) -> str | None:
    """Arguments without a column of their own."""
    if not args or args.keys() <= _ARGS.keys():
        return None
    return _json({k: v for k, v in args.items() if k not in _ARGS})


def _spans(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    columns = records.span_columns()
    return _span_columns(columns, gpus_per_node) | {"args": list(map(_rest, columns["args"]))}


def _collectives(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    columns = records.span_columns()
    kept = [category in _COLLECTIVE for category in columns["category"]]
    columns = {name: list(compress(values, kept)) for name, values in columns.items()}
    made = _span_columns(columns, gpus_per_node)
    return {name: made[name] for name in SCHEMA["collectives"]}


def _steps(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    extent: dict[tuple[Any, ...], tuple[int, int]] = {}
    busy: dict[tuple[Any, ...], int] = {}
    for track, _, category, start, end, args in records.spans():
        step = (args or {}).get("step")
        if step is None:
            continue
        key = (step, track[:2])
        first, last = extent.get(key, (start, end))
        extent[key] = (min(first, start), max(last, end))
        busy[*key, category] = busy.get((*key, category), 0) + end - start
    rows = []
    for step, device, category in sorted(busy):
        start, end = extent[step, device]
        place = _where(device, gpus_per_node)
        busy_ns = busy[step, device, category]
        rows.append((step, *place, start, end, end - start, category, busy_ns))
    return _table("steps", rows)


def _counters(records: ColumnRecorder, prefix: str) -> Columns:
    """Counter samples whose name starts with ``prefix``, without it."""
    columns = records.counter_columns()
    kept = [name.startswith(prefix) for name in columns["name"]]
    columns = {name: list(compress(values, kept)) for name, values in columns.items()}
    return columns | {"name": [name.removeprefix(prefix) for name in columns["name"]]}


def _memory(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    columns = _counters(records, "memory/")
    places = [_where(track, gpus_per_node) for track in columns["track"]]
    return {
        "rank": [p[0] for p in places],
        "node": [p[1] for p in places],
        "gpu": [p[2] for p in places],
        "t_ns": columns["t_ns"],
        "category": columns["name"],
        "bytes": list(map(round, columns["value"])),
    }


def _links(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    del gpus_per_node
    columns = _counters(records, "link/")
    return {"link": columns["name"], "t_ns": columns["t_ns"], "bytes_per_s": columns["value"]}


def _instants(records: ColumnRecorder, gpus_per_node: int) -> Columns:
    rows = [
        (*_where(track, gpus_per_node), t_ns, name, category, _json(args or {}))
        for track, name, category, t_ns, args in records.instants()
    ]
    return _table("instants", rows)


_MAKERS = {
    "spans": _spans,
    "collectives": _collectives,
    "steps": _steps,
    "memory": _memory,
    "links": _links,
    "instants": _instants,
}


def _to_pandas(name: str, columns: Columns) -> pd.DataFrame:
    import pandas as pd

    def dtype(column: str, kind: Kind) -> str:
        if kind == "int":
            return "Int64" if None in columns[column] else "int64"
        return "float64" if kind == "float" else "str"

    return pd.DataFrame(
        {c: pd.Series(columns[c], dtype=dtype(c, k)) for c, (k, _) in SCHEMA[name].items()}
    )


def _write_parquet(name: str, columns: Columns, path: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {column: kind for column, (kind, _) in SCHEMA[name].items()}
    arrays = [_arrow(pa, kind, columns[column]) for column, kind in kinds.items()]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(kinds)), path, compression="zstd")
    return path


def _arrow(pa: Any, kind: Kind, values: list[Any]) -> Any:
    """An Arrow array from its buffers: ``pa.array`` would import pandas first (0.4 s).

    Sharding: https://arrow.apache.org/docs/format/Columnar.html
    """
    import numpy as np

    present = [value is not None for value in values]
    known = all(present)
    validity = None if known else pa.py_buffer(np.packbits(present, bitorder="little"))
    if kind == "text":
        data = [b"" if value is None else value.encode() for value in values]
        ends = np.zeros(len(data) + 1, dtype=np.int32)
        np.cumsum([len(d) for d in data], out=ends[1:])
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(b"".join(data))]
        return pa.Array.from_buffers(pa.string(), len(values), buffers)
    filled = values if known else [0 if value is None else value for value in values]
    numbers = np.array(filled, dtype=np.int64 if kind == "int" else np.float64)
    arrow_type = pa.int64() if kind == "int" else pa.float64()
    return pa.Array.from_buffers(arrow_type, len(values), [validity, pa.py_buffer(numbers)])
