"""The module ``ray.data.datasource.partitioning``: what folders of files say, and their order.

Real counterpart: ``ray/data/datasource/partitioning.py``, and ``FileShuffleConfig`` of
``file_based_datasource.py`` (2.60).
"""

from __future__ import annotations

import posixpath
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from raysim.kernel.rng import Streams
from raysim.rayapi.data.columns import Columns, column_of, rows_of
from raysim.rayapi.data.randomness import RandomSeedConfig
from raysim.rayapi.data.storage import local
from raysim.rayapi.unsupported import getattr_of


class PartitionStyle(StrEnum):
    """How folders are named."""

    HIVE = "hive"
    DIRECTORY = "dir"


@dataclass
class Partitioning:
    """``ray.data.datasource.Partitioning``: what folders below ``base_dir`` are called."""

    style: PartitionStyle | str
    base_dir: str | None = None
    field_names: list[str] | None = None
    field_types: dict[str, type] | None = None
    filesystem: Any = None

    def __post_init__(self) -> None:
        """As Ray fills it in."""
        self.base_dir = self.base_dir or ""
        self.field_types = self.field_types or {}

    @property
    def normalized_base_dir(self) -> str:
        """As paths of files begin."""
        if not self.base_dir:
            return ""
        return str(local(self.base_dir, "Partitioning")).removesuffix("/") + "/"


HIVE = Partitioning(PartitionStyle.HIVE)
"""Of tables: what is read without saying."""


class PathPartitionParser:
    """Values of one file, by the names of its folders."""

    def __init__(self, partitioning: Partitioning) -> None:
        if partitioning.style == PartitionStyle.DIRECTORY and not partitioning.field_names:
            raise ValueError(
                "Directory partitioning requires a corresponding list of "
                "partition key field names. Please retry your request with one "
                "or more field names specified."
            )
        if partitioning.style not in list(PartitionStyle):
            raise ValueError(f"Unsupported partition style: {partitioning.style}.")
        self._scheme = partitioning

    @staticmethod
    def of(style: PartitionStyle | str = PartitionStyle.HIVE, *args: Any, **kwargs: Any) -> Any:
        """Of a ``Partitioning``'s arguments."""
        return PathPartitionParser(Partitioning(style, *args, **kwargs))

    @property
    def scheme(self) -> Partitioning:
        """What it goes by."""
        return self._scheme

    def __call__(self, path: str) -> dict[str, Any]:
        """None of a file outside of the base."""
        base = self._scheme.normalized_base_dir
        if not path.startswith(base):
            return {}
        folders = [f for f in posixpath.dirname(path[len(base) :]).split("/") if f]
        hive = self._scheme.style == PartitionStyle.HIVE
        found: dict[str, Any] = self._hive(folders) if hive else self._directories(folders)
        for name, kind in (self._scheme.field_types or {}).items():
            found[name] = found[name].lower() == "true" if kind is bool else kind(found[name])
        return found

    def _hive(self, folders: list[str]) -> dict[str, str]:
        said = [folder.split("=") for folder in folders if folder.count("=") == 1]
        pairs = [[key, urllib.parse.unquote(value)] for key, value in said]
        names = self._scheme.field_names
        if names and pairs:
            self._check(pairs, names)
            for (key, _), name in zip(pairs, names, strict=True):
                if key != name:
                    raise ValueError(f"Expected partition key {name} but found {key}")
        return {pair[0]: pair[1] for pair in pairs}

    def _directories(self, folders: list[str]) -> dict[str, str]:
        names = self._scheme.field_names or []
        if folders:
            self._check(folders, names)
        pairs = zip(names, folders, strict=False)
        return {name: folder for name, folder in pairs if name is not None}

    def _check(self, found: list[Any], names: list[str]) -> None:
        if len(found) != len(names):
            raise ValueError(
                f"Expected {len(names)} partition value(s) but found {len(found)}: {found}."
            )


class PathPartitionFilter:
    """``ray.data.datasource.PathPartitionFilter``: which files are read."""

    def __init__(
        self,
        path_partition_parser: PathPartitionParser,
        filter_fn: Callable[[dict[str, Any]], bool],
    ) -> None:
        self.parser = path_partition_parser
        self._keeps = filter_fn

    @staticmethod
    def of(
        filter_fn: Callable[[dict[str, Any]], bool],
        style: PartitionStyle | str = PartitionStyle.HIVE,
        *args: Any,
        **kwargs: Any,
    ) -> PathPartitionFilter:
        """Of a ``Partitioning``'s arguments."""
        return PathPartitionFilter(PathPartitionParser.of(style, *args, **kwargs), filter_fn)

    def __call__(self, paths: list[str]) -> list[str]:
        """Those that are kept."""
        return [path for path in paths if self._keeps(self.parser(path))]


@dataclass
class FileShuffleConfig:
    """``ray.data.FileShuffleConfig``."""

    seed: int | None = None
    reseed_after_execution: bool = True

    def __post_init__(self) -> None:
        """As Ray checks it."""
        if self.seed is not None and not isinstance(self.seed, int):
            raise ValueError("Seed must be an integer or None.")


def seeds_of(shuffle: Any) -> RandomSeedConfig | None:
    """What ``shuffle=`` of a reader asks for.

    Raises
    ------
    ValueError
        It is nothing that Ray knows.
    """
    if shuffle is None:
        return None
    if isinstance(shuffle, FileShuffleConfig):
        return RandomSeedConfig(shuffle.seed, shuffle.reseed_after_execution)
    if shuffle == "files":
        return RandomSeedConfig()
    raise ValueError(
        f"Invalid value for 'shuffle': {shuffle}. Valid values are None, 'files', "
        "`FileShuffleConfig`."
    )


def order_of(files: int, seed: int | None) -> list[int]:
    """In which files are read."""
    if seed is None:
        return list(range(files))
    return [int(i) for i in Streams(seed)("shuffle_files").permutation(files)]


def with_partitions(columns: Columns, file: Path, partitioning: Partitioning | None) -> Columns:
    """A file's rows with what its folders say.

    Raises
    ------
    ValueError
        The file itself says something else.
    """
    if partitioning is None:
        return columns
    for name, value in PathPartitionParser(partitioning)(str(file)).items():
        made = column_of([value] * rows_of(columns))
        if name in columns:
            made = made.astype(columns[name].dtype)
            if (made != columns[name]).any():
                raise ValueError(
                    f"Partition column {name} exists in table data, but partition value '{value}' "
                    f"is different from in-data values: {sorted(set(columns[name].tolist()))}."
                )
        columns = {**columns, name: made}
    return columns


__getattr__ = getattr_of("ray.data.datasource.partitioning")
