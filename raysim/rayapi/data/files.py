"""``ray.data.read_*``: files of this machine, read for their values.

Real counterpart: ``ray/data/read_api.py``, ``_internal/datasource/*``. A file's rows are loaded
when it is named; the read task that has it pays for its bytes, from the node's disk and through one
core. Files that are described in the scenario (``described.py``) need not be there.

Not modelled: file systems of Arrow, predicates that spare reading.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from raysim.rayapi.calls import program_call
from raysim.rayapi.clock import import_unpatched, real_datetime
from raysim.rayapi.data import webdataset
from raysim.rayapi.data.columns import (
    Columns,
    arrow,
    bytes_of,
    column_of,
    from_arrow,
    from_rows,
    joined,
    rows_of,
    sliced,
)
from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.described import dataset_of as described_dataset
from raysim.rayapi.data.described import described, how_to_describe
from raysim.rayapi.data.functions import Reads
from raysim.rayapi.data.partitioning import (
    HIVE,
    Partitioning,
    order_of,
    seeds_of,
    with_partitions,
)
from raysim.rayapi.data.randomness import RandomSeedConfig, draws_of
from raysim.rayapi.data.row_groups import groups_of, packed
from raysim.rayapi.data.storage import local, pay_for_reading
from raysim.rayapi.library_code import session_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.data import specs

DECODE_BYTES_PER_S = {
    "parquet": 500e6, "orc": 500e6, "csv": 200e6, "json": 100e6, "text": 400e6, "numpy": 2e9,
    "images": 20e6, "binary": 2e9, "webdataset": 20e6,
}  # fmt: skip
"""Of one core, per byte of a file (assumed: what pyarrow, Pillow and memcpy do on a server's core;
an image's bytes are compressed)."""
_EXTENSIONS = {
    "parquet": ("parquet",), "orc": ("orc",), "json": ("json", "jsonl"), "numpy": ("npy",),
    "images": ("png", "jpg", "jpeg", "tif", "tiff", "bmp", "gif"), "webdataset": ("tar",),
}  # fmt: skip
_NAMES = {
    "csv": "CSV", "images": "Image", "json": "ArrowJSON", "orc": "ORC", "webdataset": "WebDataset",
}  # fmt: skip
_IGNORED = (
    "filesystem", "parallelism", "num_cpus", "num_gpus", "memory", "concurrency",
    "ray_remote_args", "ignore_missing_paths", "arrow_open_stream_args",
    "arrow_open_file_args", "label_selector", "resources", "accelerator_type", "runtime_env",
    "max_calls", "fallback_strategy", "lines", "allow_pickle", "verbose_open",
)  # fmt: skip
"""Options that change nothing that is emulated."""
_ROW_OF_EACH = ("images", "binary")
"""Files of one row, which are counted before they are read."""
_CSV = ("read_options", "parse_options", "convert_options")
"""Arrow's own, of CSV."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """Rows of several files, one after the other."""

    rows: Columns
    ends: tuple[int, ...]
    """Of each file, the number of the row behind its last."""
    size_bytes: int
    decode_bytes_per_s: float

    def make(self, begin: int, end: int) -> Columns:
        """In a read task."""
        share = (end - begin) / max(self.ends[-1], 1)
        pay_for_reading(self.size_bytes * share, decode_bytes_per_s=self.decode_bytes_per_s)
        return sliced(self.rows, begin, end)


def _read(
    kind: str, paths: Any, load: Callable[[Path], Columns], override_num_blocks: int | None,
    options: dict[str, Any],
) -> Dataset:  # fmt: skip
    said = {k: v for k, v in options.items() if k not in _IGNORED and v is not None}
    optional = options.get("ignore_missing_paths", False)
    with_paths = said.pop("include_paths", False)
    extensions = said.pop("file_extensions", _EXTENSIONS.get(kind))
    partitioning = said.pop("partitioning", None)
    wanted, seeds = said.pop("partition_filter", None), seeds_of(said.pop("shuffle", None))
    if said:
        raise NotEmulatedError(f"ray.data.read_{kind}({next(iter(said))}=)", "the paths")
    named = paths if isinstance(paths, list | tuple) else [paths]
    name = f"Read{_NAMES.get(kind, kind.capitalize())}"
    there = described(named[0]) if named else None
    if there is not None:
        return described_dataset(there, name, override_num_blocks)
    here = [local(path, f"read_{kind}", how_to_describe(path)) for path in named]
    here = [path for path in here if path.exists() or not optional]
    files = [f for path in here for f in expanded(path, extensions)]
    if wanted is not None:
        files = [Path(file) for file in wanted([str(file) for file in files])]
    if not files:
        raise _no_files(kind, named, any(True for path in here for _ in expanded(path, None)),
                        extensions)  # fmt: skip
    found = []
    for file in files:
        try:
            with real_datetime():
                columns = with_partitions(load(file), file, partitioning)
        except ValueError as error:
            if kind == "parquet":  # whose schema the driver reads
                raise
            return _failing(name, len(files), error)
        if with_paths:
            columns = {**columns, "path": column_of([str(file)] * rows_of(columns))}
        found.append(columns)
    return _dataset_of(kind, name, files, found, override_num_blocks, seeds)


def _failing(name: str, files: int, error: ValueError) -> Dataset:
    """Of files of which one cannot be read: the tasks will say so."""

    def make(_begin: int, _end: int) -> Columns:
        raise error

    hook = Reads(session=session_here(), make=make, name=name)
    source = specs.Source(name=name, rows=files, row_bytes=1.0, files=files, hook=hook)
    return Dataset(specs.Dataset(source=source))


def _dataset_of(
    kind: str, name: str, files: list[Path], found: list[Columns],
    override_num_blocks: int | None, seeds: RandomSeedConfig | None,
) -> Dataset:  # fmt: skip
    """Of files that are loaded; they may be shuffled before every execution."""
    session = session_here()
    draws = None if seeds is None else draws_of(seeds)

    def source() -> specs.Source:
        seed = None if draws is None else draws()
        order = order_of(len(found), seed)
        parts = [found[i] for i in order]
        counts = tuple(rows_of(part) for part in parts)
        read: tuple[int, ...] = ()
        if kind == "parquet":
            bins = packed([g for at, i in enumerate(order) for g in groups_of(at, files[i])])
            read = tuple(sum(group.rows for group in groups) for groups in bins)
            parts = [sliced(parts[g.file], g.begin, g.begin + g.rows) for b in bins for g in b]
        rows = joined(parts)
        content = _Files(
            rows=rows, ends=tuple(accumulate(counts)),
            size_bytes=sum(f.stat().st_size for f in files),
            decode_bytes_per_s=DECODE_BYTES_PER_S[kind],
        )  # fmt: skip
        return specs.Source(
            name=name, rows=sum(counts), row_bytes=bytes_of(rows) / max(sum(counts), 1),
            override_num_blocks=override_num_blocks, files=len(counts), file_rows=counts,
            task_rows=read,
            slices=sliced, hook=Reads(session=session, make=content.make, name=name),
            again=None if draws is None else source, counted=kind in _ROW_OF_EACH,
        )  # fmt: skip

    first = sliced(joined(found), 0, 1) if kind == "parquet" else None
    return Dataset(specs.Dataset(source=source()), first=first, files=tuple(map(str, files)))


def _no_files(kind: str, named: Any, there_are: bool, extensions: Any) -> Exception:
    """As ``FileBasedDatasource`` says it; Parquet's says it otherwise."""
    if kind == "parquet":
        return ValueError(
            f"no files found under {named}. Check the path and any configured `partition_filter` "
            "or `file_extensions` filters."
        )
    if there_are and extensions:
        return ValueError(
            "No input files found to read with the following file extensions: "
            f"{list(extensions)}. Please double check that 'file_extensions' field is set properly."
        )
    return ValueError(
        f"No files found under {named}. Note that listing skips names starting with '_' or '.'."
    )


def expanded(path: Path, extensions: Any) -> Iterator[Path]:
    """A file, or those of a folder in the order of their names."""
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            hidden = any(part[0] in "._" for part in file.relative_to(path).parts)
            wanted = not extensions or file.name.rpartition(".")[2].lower() in extensions
            if file.is_file() and not hidden and wanted:
                yield file
    elif path.is_file():
        yield path
    else:
        raise FileNotFoundError(path)


@program_call
def read_parquet(
    paths: Any, *, columns: list[str] | None = None, override_num_blocks: int | None = None,
    partitioning: Partitioning | None = HIVE, **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_parquet``, also by Arrow's ``schema``.

    Raises
    ------
    ValueError
        Rows are to be filtered, which Ray no longer does here.
    """
    if "filter" in options:
        raise ValueError(
            "`filter=` on `read_parquet` is not supported. Use "
            "`ray.data.read_parquet(path).filter(expr=expr)` instead."
        )
    arrow("read_parquet")
    pq = import_unpatched("pyarrow.parquet")
    schema = options.pop("schema", None)
    options.pop("filters", None)  # Ray 2.60 hands it on to nobody: all rows are read

    def load(file: Path) -> Columns:
        if columns is None:
            return from_arrow(pq.read_table(file, schema=schema, partitioning=None))
        there = schema.names if schema is not None else pq.read_schema(file).names
        own = [name for name in columns if name in there] or there[:1]  # one counts the rows
        table = pq.read_table(file, columns=own, schema=schema, partitioning=None)
        whole = with_partitions(from_arrow(table), file, partitioning)
        return {name: whole[name] for name in columns if name in whole}

    options["partitioning"] = partitioning if columns is None else None
    return _read("parquet", paths, load, override_num_blocks, options)


@program_call
def read_csv(
    paths: Any, *, override_num_blocks: int | None = None,
    partitioning: Partitioning | None = HIVE, **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_csv``; Arrow's options of reading are Arrow's to use."""
    arrow("read_csv")
    csv = import_unpatched("pyarrow.csv")
    said = {name: options.pop(name, None) for name in _CSV}

    def load(file: Path) -> Columns:
        try:
            return from_arrow(csv.read_csv(file, **said))
        except import_unpatched("pyarrow").ArrowInvalid as error:
            raise ValueError(
                f"Failed to read CSV file: {file}. Please check the CSV file has correct format, "
                "or filter out non-CSV file with 'partition_filter' field. See read_csv() "
                "documentation for more details."
            ) from error

    options["partitioning"] = partitioning
    return _read("csv", paths, load, override_num_blocks, options)


@program_call
def read_json(
    paths: Any, *, override_num_blocks: int | None = None,
    partitioning: Partitioning | None = HIVE, **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_json``: lines, or one list."""
    options["partitioning"] = partitioning
    return _read("json", paths, _json, override_num_blocks, options)


def _json(file: Path) -> Columns:
    """By Arrow, which knows times; what it does not take, as Python reads it."""
    arrow("read_json")
    with suppress(import_unpatched("pyarrow").ArrowInvalid):
        return from_arrow(import_unpatched("pyarrow.json").read_json(file))
    text = file.read_text(encoding="utf-8")
    try:
        found = json.loads(text)
        rows = found if isinstance(found, list) else [found]
    except json.JSONDecodeError:
        rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    names = dict.fromkeys(name for row in rows for name in row)
    return from_rows([{name: row.get(name) for name in names} for row in rows])


@program_call
def read_orc(
    paths: Any, *, columns: list[str] | None = None, override_num_blocks: int | None = None,
    **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_orc``."""
    arrow("read_orc")
    orc = import_unpatched("pyarrow.orc")
    load = lambda file: from_arrow(orc.read_table(file, columns=columns))  # noqa: E731
    return _read("orc", paths, load, override_num_blocks, options)


@program_call
def read_text(
    paths: Any, *, encoding: str = "utf-8", drop_empty_lines: bool = True,
    override_num_blocks: int | None = None, **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_text``: a row of every line."""

    def load(file: Path) -> Columns:
        lines = file.read_text(encoding=encoding).splitlines()
        kept = [line for line in lines if line.strip() != ""] if drop_empty_lines else lines
        return {"text": column_of(kept)}

    return _read("text", paths, load, override_num_blocks, options)


@program_call
def read_numpy(paths: Any, *, override_num_blocks: int | None = None, **options: Any) -> Dataset:
    """``ray.data.read_numpy``."""
    load = lambda file: {"data": np.load(file)}  # noqa: E731
    return _read("numpy", paths, load, override_num_blocks, options)


@program_call
def read_binary_files(
    paths: Any, *, override_num_blocks: int | None = None, **options: Any
) -> Dataset:
    """``ray.data.read_binary_files``."""
    load = lambda file: {"bytes": column_of([file.read_bytes()])}  # noqa: E731
    return _read("binary", paths, load, override_num_blocks, options)


@program_call
def read_images(
    paths: Any, *, size: tuple[int, int] | None = None, mode: str | None = None,
    override_num_blocks: int | None = None, **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_images``: arrays of height, width and channels."""
    if size is not None and len(size) != 2:
        raise ValueError(
            "Expected `size` to contain two integers for height and width, but got "
            f"{len(size)} integers instead."
        )
    if size is not None and min(size) <= 0:
        raise ValueError(f"Expected `size` to contain positive integers, but got {size} instead.")
    return _read("images", paths, partial(_image, size, mode), override_num_blocks, options)


@program_call
def read_webdataset(
    paths: Any, *, decoder: Any = True, fileselect: Any = None, filerename: Any = None,
    suffixes: Any = None, expand_json: bool = False, override_num_blocks: int | None = None,
    **options: Any,
) -> Dataset:  # fmt: skip
    """``ray.data.read_webdataset``: a row of every sample in tars."""
    load = partial(
        webdataset.load, decoder=decoder, fileselect=fileselect, filerename=filerename,
        suffixes=suffixes, expand_json=expand_json,
    )  # fmt: skip
    return _read("webdataset", paths, load, override_num_blocks, options)


def _image(size: tuple[int, int] | None, mode: str | None, file: Path) -> Columns:
    try:
        image_of = import_unpatched("PIL.Image")
    except ImportError as error:
        raise ImportError("read_images needs Pillow: pip install Pillow") from error
    try:
        image = image_of.open(BytesIO(file.read_bytes()))
    except image_of.UnidentifiedImageError as error:
        raise ValueError(f"PIL couldn't load image file at path '{file}'.") from error
    if size is not None:
        height, width = size
        image = image.resize((width, height), resample=image_of.BILINEAR)
    if mode is not None:
        image = image.convert(mode)
    return {"image": column_of([np.asarray(image)])}
