"""``datasets``: data sets whose few rows stand for as many as published.

Real counterpart: ``datasets`` (5.2), as far as training scripts use it: ``load_dataset`` of names
that ``hub.csv`` has, and JSON, CSV and text files.

Not modelled: files of Arrow, builders of one's own.
"""

from __future__ import annotations

import csv
import json
from collections import abc
from pathlib import Path
from typing import Any

import numpy as np

from raysim.rayapi.standins import hub
from raysim.rayapi.standins.absent import features  # noqa: F401  (a script's datasets.features)
from raysim.rayapi.standins.absent.features import (
    Array2D,
    Array3D,
    Audio,
    ClassLabel,
    Features,
    Image,
    Sequence,
    Value,
    features_of,
)
from raysim.rayapi.standins.absent.rows import Dataset, DatasetDict

__version__ = "5.2.0"
List = LargeList = Sequence
IterableDataset = Dataset
IterableDatasetDict = DatasetDict


def load_dataset(
    path: str, name: str | None = None, *_: Any, split: Any = None, data_files: Any = None,
    **__: Any,
) -> Any:  # fmt: skip
    """``datasets.load_dataset``."""
    files = hub.of_hub(data_files)
    if files is not None:
        path, name = files
    elif data_files is not None or Path(path).exists():
        made = {s: _read(path, f) for s, f in _files(path, data_files).items()}
        return DatasetDict(made) if split is None else made[str(split).partition("[")[0]]
    table = hub.known_table(path, name)
    splits = hub.asked_splits(table, split)
    hub.say_of(table, path, splits)
    found = DatasetDict()
    for part, rows in splits.items():
        bank = hub.bank(table, rows)
        held = len(next(iter(bank.values())))
        index = np.arange(min(rows, hub.MOST_ROWS)) % held
        found[part] = Dataset(bank, index, features_of(bank, {}, table), part)
    return found if split is None else next(iter(found.values()))


def _files(path: str, data_files: Any) -> dict[str, list[str]]:
    if data_files is None:
        data_files = [path] if Path(path).is_file() else sorted(map(str, Path(path).iterdir()))
    given = data_files if isinstance(data_files, abc.Mapping) else {"train": data_files}
    return {s: [f] if isinstance(f, str) else list(f) for s, f in given.items()}


def _read(kind: str, files: abc.Sequence[str]) -> Dataset:
    rows: list[dict[str, Any]] = []
    for file in files:
        text = Path(file).read_text(encoding="utf-8")
        if file.endswith((".json", ".jsonl")) or kind == "json":
            whole = text.lstrip().startswith("[")
            rows += json.loads(text) if whole else map(json.loads, text.splitlines())
        elif file.endswith(".csv") or kind == "csv":
            rows += csv.DictReader(text.splitlines())
        else:
            rows += ({"text": line} for line in text.splitlines())
    return Dataset.from_list(rows)


def load_from_disk(path: str, *_: Any, **__: Any) -> Any:
    """Of Arrow files, which only the package reads.

    Raises
    ------
    ModuleNotFoundError
        Always.
    """
    raise ModuleNotFoundError(
        f"load_from_disk({path!r}) reads Arrow files: pip install datasets", name="datasets"
    )


def concatenate_datasets(dsets: abc.Sequence[Dataset], *_: Any, **__: Any) -> Dataset:
    """One after another: of the columns that all have."""
    names = [n for n in dsets[0].column_names if all(n in d.column_names for d in dsets)]
    bank = {n: [v for d in dsets for v in d.bank[n]] for n in names}
    begins = np.cumsum([0, *(len(next(iter(d.bank.values()))) for d in dsets)])
    index = np.concatenate([d.index + b for d, b in zip(dsets, begins[:-1], strict=True)])
    return Dataset(bank, index, dsets[0].features)


interleave_datasets = concatenate_datasets


def get_dataset_config_names(path: str, *_: Any, **__: Any) -> list[str]:
    """Of the hub."""
    return hub.config_names(path)


def disable_caching() -> None:
    """Nothing is cached."""


disable_progress_bar = disable_progress_bars = enable_caching = disable_caching


class DownloadConfig:
    """``datasets.DownloadConfig``: nothing is downloaded."""

    def __init__(self, **_: Any) -> None:
        """Whatever it says."""


class Split:
    """``datasets.Split``."""

    TRAIN, TEST, VALIDATION = "train", "test", "validation"


class logging:  # noqa: N801  (a module of theirs)
    """``datasets.logging``, which says nothing."""

    set_verbosity = set_verbosity_error = set_verbosity_warning = set_verbosity_info = staticmethod(
        lambda *_: None
    )


class utils:  # noqa: N801  (a module of theirs)
    """``datasets.utils``."""

    logging = logging


def split_dataset_by_node(dataset: Dataset, rank: int, world_size: int) -> Dataset:
    """``datasets.distributed.split_dataset_by_node``."""
    return dataset.shard(world_size, rank)


__all__ = [
    "Array2D", "Array3D", "Audio", "ClassLabel", "Dataset", "DatasetDict", "Features", "Image",
    "IterableDataset", "Sequence", "Value", "load_dataset",
]  # fmt: skip
