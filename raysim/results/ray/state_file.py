"""Rows of a state log on disk, so that any moment of a run can be looked at again.

``frames/state.parquet`` has one row per change; its ``detail`` is JSON, and what many rows share
(options, resource sets) stands once in the file's metadata. Only classes named here are ever made
from a file: reading one runs nothing. Functions and values of the program are not kept, only their
names and sizes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.raycore import protocol, tasks
from raysim.raycore.config import RayConfig
from raysim.raycore.ids import WorkerAddress
from raysim.raycore.resources import ResourceSet
from raysim.raycore.running import RunningTask
from raysim.raycore.state_log import Change

if TYPE_CHECKING:
    import pandas as pd

_NAMED = (
    WorkerAddress, tasks.Ref, tasks.Payload, tasks.TaskError, protocol.LeaseSpec, protocol.Bundle,
    protocol.ActorTableData, protocol.PlacementGroupTableData, protocol.NodeTableData,
    protocol.AddJob,
)  # fmt: skip
_FROZEN = (
    tasks.NodeAffinity, tasks.LabelMatch, tasks.NodeLabels, tasks.InPlacementGroup,
    tasks.RuntimeEnv, tasks.RemoteFunction, tasks.ActorOptions, tasks.TaskOptions,
)  # fmt: skip
_SPEC_FIELDS = (
    "task_id", "options", "args", "caller", "kind", "job_id", "parent", "depth", "actor_id",
    "seq_no", "root_detached_actor_id",
)  # fmt: skip
_OBJECTS: tuple[type[Any], ...] = (*_NAMED, *_FROZEN, tasks.TaskSpec)
_CLASSES = {c.__name__: c for c in _OBJECTS}
_SHARED = (tasks.TaskOptions, tasks.RemoteFunction, ResourceSet)
_LEFT_OUT = {"body": None, "data": None}
"""Fields that only the run itself can use."""

Encoded = tuple[list[tuple[Any, ...]], list[Any]]


class _Encoder:
    """Details as plain data; what is shared is numbered."""

    def __init__(self) -> None:
        self.shared: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def plain(self, value: Any) -> Any:
        """JSON of a detail."""
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, _SHARED):
            return {"#": self._number(value)}
        if isinstance(value, _OBJECTS):
            return self._object(value)
        if isinstance(value, Mapping):
            return {"{}": [[self.plain(k), self.plain(v)] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        return str(value)

    def _number(self, value: Any) -> int:
        number = self._numbers.get(id(value))
        if number is None:
            made = (
                {"ResourceSet": dict(value.units)}
                if isinstance(value, ResourceSet)
                else self._object(value)
            )
            number = self._numbers[id(value)] = len(self.shared)
            self._kept.append(value)
            self.shared.append(made)
        return number

    def _object(self, value: Any) -> dict[str, Any]:
        kind = type(value).__name__
        if isinstance(value, tasks.TaskSpec):
            return {kind: [self.plain(getattr(value, name)) for name in _SPEC_FIELDS]}
        fields = _fields(type(value))
        return {kind: [None if f in _LEFT_OUT else self.plain(getattr(value, f)) for f in fields]}


class _Decoder:
    """The other way."""

    def __init__(self, shared: list[Any]) -> None:
        self._made: list[Any] = []
        for item in shared:  # each refers only to those before it
            self._made.append(self.value(item))

    def value(self, plain: Any) -> Any:
        """What the JSON stands for; sequences become tuples."""
        if isinstance(plain, list):
            return tuple(self.value(item) for item in plain)
        if not isinstance(plain, dict):
            return plain
        ((kind, content),) = plain.items()
        if kind == "#":
            return self._made[content]
        if kind == "{}":
            return {self.value(k): self.value(v) for k, v in content}
        if kind == "ResourceSet":
            return ResourceSet(content)
        made = _CLASSES[kind]
        values = [self.value(item) for item in content]
        if made is tasks.TaskSpec:
            given = dict(zip(_SPEC_FIELDS, values, strict=True))
            return tasks.TaskSpec(
                given.pop("task_id"), given.pop("options"), given.pop("args"),
                given.pop("caller"), **given,
            )  # fmt: skip
        if made is tasks.RemoteFunction:
            values[1] = _nothing
        return made(**dict(zip(_fields(made), values, strict=True)))


def _fields(kind: type[Any]) -> tuple[str, ...]:
    named: tuple[str, ...] | None = getattr(kind, "_fields", None)
    return named or tuple(f.name for f in dataclasses.fields(kind) if f.init)


def _nothing(_running: RunningTask) -> None:
    """The body of a function that was read from a file."""
    raise AssertionError("a function read from a state file cannot run")


def encode(rows: Iterable[Change]) -> Encoded:
    """Rows with plain details, and what they share."""
    encoder = _Encoder()
    made = [(*row[:6], encoder.plain(row.detail)) for row in rows]
    return made, encoder.shared


def decode(rows: Iterable[tuple[Any, ...]], shared: list[Any]) -> list[Change]:
    """Rows as they were, but for what a function does."""
    decoder = _Decoder(shared)
    return [Change._make((*row[:6], decoder.value(row[6]))) for row in rows]


# ---- files ---------------------------------------------------------------------------------------


def write(rows: Iterable[Change], path: Path, *, end_ns: int, config: RayConfig) -> Path:
    """The rows as parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made, shared = encode(rows)
    columns = list(zip(*made, strict=True)) or [()] * 7
    columns[1] = tuple(map(str, columns[1]))  # ids of objects have more than 64 bits
    texts = [None if d is None else json.dumps(d, separators=(",", ":")) for d in columns[6]]
    kinds = (pa.string(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    arrays = [pa.array(c, k) for c, k in zip(columns[:6], kinds, strict=True)]
    meta = {
        "shared": json.dumps(shared), "end_ns": str(end_ns),
        "config": json.dumps(dataclasses.asdict(config)),
    }  # fmt: skip
    table = pa.table([*arrays, pa.array(texts, pa.string())], names=list(Change._fields))
    pq.write_table(table.replace_schema_metadata(meta), path, compression="zstd")
    return path


def read(path: Path) -> tuple[list[Change], int, RayConfig]:
    """Rows, the end of the run, and Ray's settings."""
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    meta = {k.decode(): v.decode() for k, v in table.schema.metadata.items()}
    columns = [table.column(name).to_pylist() for name in Change._fields]
    columns[1] = list(map(int, columns[1]))
    details = [None if text is None else json.loads(text) for text in columns[6]]
    rows = decode(zip(*columns[:6], details, strict=True), json.loads(meta["shared"]))
    return rows, int(meta["end_ns"]), RayConfig(**json.loads(meta["config"]))


def write_table(frame: pd.DataFrame, path: Path) -> Path:
    """A frame as parquet; what is not a number, a text or a truth value becomes JSON."""
    for column in frame.columns:
        if frame[column].map(lambda v: isinstance(v, dict | list | tuple)).any():
            frame[column] = frame[column].map(
                lambda v: None if v is None else json.dumps(v, sort_keys=True)
            )
    frame.to_parquet(path, index=False)
    return path
