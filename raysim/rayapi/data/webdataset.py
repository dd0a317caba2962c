"""WebDataset: samples as neighbouring members of a tar, told apart by what their names begin with.

Real counterpart: ``_internal/datasource/webdataset_{datasource,datasink}.py`` of Ray 2.60. What a
member is goes by its extension, for reading and for writing; a program's own decoders and encoders
stand in their place, or run after one another.

Not modelled: bytes of PyTorch and pickle are refused, as Ray does unless its variable is set.
"""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from raysim.rayapi.clock import import_unpatched
from raysim.rayapi.data.columns import Columns, from_rows, to_rows

Sample = dict[str, Any]
Selection = Callable[[str], Any] | list[str] | None
UNSAFE = "RAY_DATA_WEBDATASET_ALLOW_UNSAFE_DESERIALIZATION"
_NAME = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")
_IMAGES = ("jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm")
_TORCH, _PICKLE = ("pt", "pth"), ("pickle", "pkl")


def load(
    file: Path,
    *,
    decoder: Any = True,
    fileselect: Selection = None,
    filerename: Any = None,
    suffixes: Selection = None,
    expand_json: bool = False,
) -> Columns:
    """The samples of one tar; missing parts of a sample are None.

    Raises
    ------
    ValueError
        Members of one sample are not neighbours, one is there twice, or its format is not safe.
    """
    rows = []
    for sample in _samples(file, fileselect, filerename, suffixes):
        decoded = _applied(decoder, sample, _decoded)
        rows.append(_with_json(decoded) if expand_json else decoded)
    names = dict.fromkeys(name for row in rows for name in row)
    return from_rows([{name: row.get(name) for name in names} for row in rows])


def _samples(
    file: Path, fileselect: Selection, filerename: Any, suffixes: Selection
) -> Iterator[Sample]:
    """Members with one key, together, as bytes."""
    current: Sample = {}
    ended = set[str]()
    for name, value in _members(file, fileselect, filerename):
        found = _NAME.match(name)
        if found is None:
            continue
        key, suffix = found.groups()
        if key != current.get("__key__"):
            yield from _whole(current, file)
            ended |= {current["__key__"]} if current else set()
            if key in ended:
                raise ValueError(
                    f"WebDataset tar entries for key '{key}' are not contiguous in the archive "
                    f"(tar is {file}). Members of a sample must be neighbours: sort them by name."
                )
            current = {"__key__": key}
        if suffix in current:
            raise ValueError(f"{name}: duplicate file name in tar file {file}")
        if _selected(suffix, suffixes):
            current[suffix] = value
    yield from _whole(current, file)


def _whole(sample: Sample, file: Path) -> Iterator[Sample]:
    if sample and not sample.get("__bad__", False):
        yield {**sample, "__url__": str(file)}


def _members(file: Path, fileselect: Selection, filerename: Any) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(file, mode="r|*") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                continue
            name = _applied(filerename, member.name, None)
            if _selected(name, fileselect):
                yield name, content.read()


def _selected(name: str, wanted: Selection) -> bool:
    """Literal suffixes, or patterns of the shell."""
    if wanted is None:
        return True
    if callable(wanted):
        return bool(wanted(name))
    return any(
        fnmatch.fnmatch(f".{name}", pattern) if set("*?") & set(pattern)
        else pattern in (name, f".{name}")
        for pattern in wanted
    )  # fmt: skip


def _applied(steps: Any, value: Any, default: Callable[..., Any] | None) -> Any:
    """Functions one after the other; what is none is the default's ``format``."""
    for step in steps if isinstance(steps, list) else [steps]:
        if callable(step):
            value = step(value)
        elif step is not None:
            assert default is not None, f"{step!r} is no function"
            value = default(value, step)
    return value


def _decoded(sample: Sample, form: Any) -> Sample:
    return {
        name: value if name.startswith("__") else _part(name, value, form)
        for name, value in sample.items()
    }


def _part(name: str, value: bytes, form: Any) -> Any:
    """One member's value, by its extension."""
    kind = name.rpartition(".")[2]
    if kind in ("txt", "text"):
        return value.decode()
    if kind in ("cls", "cls2"):
        return int(value.decode())
    if kind in _IMAGES and kind != "jpeg":
        image = import_unpatched("PIL.Image").open(io.BytesIO(value))
        return image if form == "PIL" else np.asarray(image)
    if kind == "json":
        return json.loads(value)
    if kind == "npy":
        return np.load(io.BytesIO(value))
    if kind == "mp":
        return import_unpatched("msgpack").unpackb(value, raw=False)
    if kind in (*_TORCH, *_PICKLE):
        return _unsafe(name, kind, value)
    return value


def _unsafe(name: str, kind: str, value: bytes) -> Any:
    if os.environ.get(UNSAFE, "0").lower() not in ("1", "true"):
        raise ValueError(
            f"Refusing to load .{kind} member {name!r} from WebDataset (arbitrary code execution "
            f"risk). Provide a custom decoder or set {UNSAFE}=1 for trusted sources."
        )
    if kind in _TORCH:
        return import_unpatched("torch").load(io.BytesIO(value), weights_only=False)
    return import_unpatched("pickle").loads(value)


def _with_json(sample: Sample) -> Sample:
    """Keys of its JSON as columns, where it has none of that name."""
    said = sample["json"]
    said = said if isinstance(said, dict) else json.loads(said)
    return {**{name: value for name, value in said.items() if name not in sample}, **sample}


def store(columns: Columns, file: Path, encoder: Any, keys: Iterator[str]) -> None:
    """Write rows as samples; those without a key get one of ``keys``."""
    with tarfile.open(file, mode="w|") as archive:
        for row in to_rows(columns):
            sample = _applied(encoder, row, _encoded)
            key = sample.get("__key__") or next(keys)
            for name, value in sample.items():
                if value is None or name.startswith("__"):
                    continue
                content = value if isinstance(value, bytes) else value.encode()
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size, member.mode = len(content), 0o644
                member.uname = member.gname = "data"
                archive.addfile(member, io.BytesIO(content))


def _encoded(sample: Sample, _form: Any) -> Sample:
    return {
        name: value if name.startswith("__") or value is None else _bytes_of(name, value)
        for name, value in sample.items()
    }


def _bytes_of(name: str, value: Any) -> Any:
    """One member's content, by its extension."""
    kind = name.rpartition(".")[2]
    if kind == "txt":
        return value.encode()
    if kind in ("cls", "cls2"):
        return str(value).encode()
    if kind == "json":
        return json.dumps(value, default=_plain).encode()
    if kind == "mp":
        return import_unpatched("msgpack").dumps(value)
    if kind not in (*_IMAGES, "npy", *_TORCH, *_PICKLE):
        return value
    content = io.BytesIO()
    if kind in _IMAGES:
        of = import_unpatched("PIL.Image")
        image = of.fromarray(value) if isinstance(value, np.ndarray) else value
        image.save(content, format={"jpg": "jpeg"}.get(kind, kind))
    elif kind == "npy":
        np.save(content, value)
    elif kind in _TORCH:
        import_unpatched("torch").save(value, content)
    else:
        import_unpatched("pickle").dump(value, content)
    return content.getvalue()


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)
