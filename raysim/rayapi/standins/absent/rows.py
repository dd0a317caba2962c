"""``datasets.Dataset`` and ``DatasetDict``: few rows that stand for many.

Real counterpart: ``datasets/arrow_dataset.py`` (5.2). A data set keeps a bank of rows and an index
into it; ``map`` and ``filter`` work on the bank once.

Not modelled: memory and time that they take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import gcd
from types import SimpleNamespace
from typing import Any

import numpy as np

from raysim.rayapi.standins.absent.features import (
    Audio,
    ClassLabel,
    Features,
    Value,
    features_of,
)

Batch = dict[str, list[Any]]


class Dataset:
    """``datasets.Dataset``.

    Parameters
    ----------
    bank, index
        Rows by column, and which of them each row is.
    features, split
        As of ``datasets``.
    """

    def __init__(
        self, bank: Batch, index: Any = None, features: Any = None, split: str | None = None
    ) -> None:
        self.bank = bank
        self.raysim_known = True  # passes and ranks may share batches (``shapes.alike``)
        held = len(next(iter(bank.values()), ()))
        self.index = np.arange(held) if index is None else index
        self.features = features or Features({name: Value() for name in bank})
        self.split = split
        self._transform: Callable[[Batch], Batch] | None = None
        self._kept: list[str] | None = None
        self._kind: str | None = None

    # ---- looking ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_rows(self) -> int:
        """How many."""
        return len(self)

    @property
    def column_names(self) -> list[str]:
        """In order."""
        return list(self.bank)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, columns."""
        return len(self), len(self.bank)

    @property
    def info(self) -> Any:
        """``DatasetInfo``."""
        return SimpleNamespace(features=self.features, splits=None, dataset_name="")

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [self.bank[key][i] for i in self.index]
        if isinstance(key, slice | list | tuple | np.ndarray | range):
            return self._shown(self.index[key if isinstance(key, slice) else list(key)])
        row = self._shown([self.index[int(key)]])
        return {name: values[0] for name, values in row.items()}

    def __getitems__(self, keys: Sequence[int]) -> list[dict[str, Any]]:
        """As a data loader asks for a batch."""
        return [self[i] for i in keys]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[i] for i in range(len(self)))

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Batch]:
        """Batches."""
        last = len(self) - batch_size + 1 if drop_last_batch else len(self)
        return (self[i : i + batch_size] for i in range(0, last, batch_size))

    def _shown(self, places: Any) -> Batch:
        rows = {name: [values[i] for i in places] for name, values in self.bank.items()}
        if self._transform is not None:
            return self._transform(rows)
        names = self._kept or rows
        return {name: _as(self._kind, rows[name]) for name in names}

    # ---- another of its rows ---------------------------------------------------------------------

    def _like(self, index: Any) -> Dataset:
        made = Dataset(self.bank, index, self.features, self.split)
        return self._shown_as(made)

    def _shown_as(self, made: Dataset) -> Dataset:
        made._transform, made._kind = self._transform, self._kind
        made._kept = self._kept and [name for name in self._kept if name in made.bank]
        return made

    def _of(self, bank: Batch, features: Any = None) -> Dataset:
        """With other rows in its bank: as many more or fewer in all."""
        before = len(next(iter(self.bank.values()), ()))
        now = len(next(iter(bank.values()), ()))
        index = self.index
        if now != before:
            index = np.arange(round(len(self) * now / max(before, 1))) % max(now, 1)
        made = Dataset(bank, index, features or features_of(bank, self.features), self.split)
        return self._shown_as(made)

    def select(self, indices: Any, **_: Any) -> Dataset:
        """Rows by number."""
        return self._like(self.index[list(indices)])

    def take(self, n: int) -> Dataset:
        """The first."""
        return self._like(self.index[:n])

    def skip(self, n: int) -> Dataset:
        """All but the first."""
        return self._like(self.index[n:])

    def shuffle(self, seed: int | None = None, **_: Any) -> Dataset:
        """In another order: each row a fixed number of rows from the last one."""
        many = max(len(self.index), 1)
        step = next(n for n in range(round(many * 0.618) + 1, 2 * many + 2) if gcd(n, many) == 1)
        return self._like(self.index[(np.arange(len(self.index)) * step + (seed or 0)) % many])

    def sort(self, *_: Any, **__: Any) -> Dataset:
        """In the order there is."""
        return self._like(self.index)

    def shard(self, num_shards: int, index: int, contiguous: bool = True, **_: Any) -> Dataset:
        """One of so many parts."""
        if contiguous:
            return self._like(np.array_split(self.index, num_shards)[index])
        return self._like(self.index[index::num_shards])

    def train_test_split(
        self, test_size: Any = None, train_size: Any = None, **_: Any
    ) -> DatasetDict:
        """Two parts."""
        whole = len(self)
        tested = _part(test_size, whole)
        if tested is None:
            trained = _part(train_size, whole)
            tested = whole // 4 if trained is None else whole - trained
        kept = whole - tested
        return DatasetDict(train=self._like(self.index[:kept]), test=self._like(self.index[kept:]))

    # ---- other columns ---------------------------------------------------------------------------

    def map(
        self, function: Any = None, with_indices: bool = False, with_rank: bool = False,
        input_columns: Any = None, batched: bool = False, batch_size: int | None = 1000,
        remove_columns: Any = None, fn_kwargs: Any = None, **_: Any,
    ) -> Dataset:  # fmt: skip
        """What a function makes of the bank's rows."""
        given = [input_columns] if isinstance(input_columns, str) else input_columns
        held = len(next(iter(self.bank.values()), ()))
        few = Dataset(self.bank, None, self.features)
        self._shown_as(few)
        if batch_size is None or batch_size <= 0:
            batch_size = held
        each = batch_size if batched else 1
        made: list[tuple[Batch, Any]] = []
        for begin in range(0, held, each):
            rows = few[begin : begin + each]
            row: Any = rows if batched else {name: values[0] for name, values in rows.items()}
            more: list[Any] = [row] if given is None else [row[name] for name in given]
            if with_indices:
                more.append(list(range(begin, begin + each)) if batched else begin)
            if with_rank:
                more.append(0)
            out = function(*more, **(fn_kwargs or {}))
            made.append((rows, {} if out is None else dict(out)))
        gone = [remove_columns] if isinstance(remove_columns, str) else remove_columns or []
        return self._of(_joined(made, set(gone), batched=batched))

    def filter(
        self, function: Any = None, with_indices: bool = False, input_columns: Any = None,
        batched: bool = False, fn_kwargs: Any = None, **_: Any,
    ) -> Dataset:  # fmt: skip
        """Those of the bank's rows of which a function says so."""
        said: list[Any] = []

        def ask(*row: Any, **more: Any) -> Any:
            answer = function(*row, **more)
            said.extend(answer if batched else [answer])
            return None

        self.map(ask, with_indices, False, input_columns, batched, fn_kwargs=fn_kwargs)
        bank = {
            name: [v for v, keep in zip(values, said, strict=True) if keep]
            for name, values in self.bank.items()
        }
        return self._of(bank, self.features)

    def remove_columns(self, column_names: Any, **_: Any) -> Dataset:
        """Without them."""
        gone = {column_names} if isinstance(column_names, str) else set(column_names)
        return self._of({n: v for n, v in self.bank.items() if n not in gone})

    def select_columns(self, column_names: Any, **_: Any) -> Dataset:
        """Them alone."""
        kept = [column_names] if isinstance(column_names, str) else column_names
        return self._of({n: self.bank[n] for n in kept})

    def rename_columns(self, column_mapping: Mapping[str, str], **_: Any) -> Dataset:
        """Under other names."""
        bank = {column_mapping.get(n, n): v for n, v in self.bank.items()}
        kinds = {column_mapping.get(n, n): f for n, f in self.features.items()}
        return self._of(bank, Features(kinds))

    def rename_column(self, original_column_name: str, new_column_name: str, **_: Any) -> Dataset:
        """Under another name."""
        return self.rename_columns({original_column_name: new_column_name})

    def add_column(self, name: str, column: Sequence[Any], *_: Any, **__: Any) -> Dataset:
        """One more: of the rows that the bank's stand for first."""
        held = len(next(iter(self.bank.values()), ()))
        return self._of({**self.bank, name: list(column[:held])})

    def cast(self, features: Any, **_: Any) -> Dataset:
        """Of other types."""
        return self._of(self.bank, Features(features))

    def cast_column(self, column: str, feature: Any, **_: Any) -> Dataset:
        """Sounds at another rate."""
        bank = dict(self.bank)
        if isinstance(feature, Audio) and feature.sampling_rate:
            bank[column] = [feature.at_rate(sound) for sound in bank[column]]
        return self._of(bank, Features({**self.features, column: feature}))

    def class_encode_column(self, column: str, **_: Any) -> Dataset:
        """Classes by number."""
        names = sorted({str(v) for v in self.bank[column]})
        bank = {**self.bank, column: [names.index(str(v)) for v in self.bank[column]]}
        return self._of(bank, Features({**self.features, column: ClassLabel(names=names)}))

    def unique(self, column: str) -> list[Any]:
        """Values of a column."""
        return list(dict.fromkeys(self.bank[column]))

    def flatten(self, *_: Any, **__: Any) -> Dataset:
        """Columns of columns by themselves: ``answers.text``."""
        bank: Batch = {}
        for name, values in self.bank.items():
            if values and isinstance(values[0], dict) and "array" not in values[0]:
                bank |= {f"{name}.{inner}": [v[inner] for v in values] for inner in values[0]}
            else:
                bank[name] = values
        return self._of(bank)

    def flatten_indices(self, **_: Any) -> Dataset:
        """As it is."""
        return self

    # ---- how rows are shown ----------------------------------------------------------------------

    def set_format(self, type: Any = None, columns: Any = None, **_: Any) -> None:  # noqa: A002
        """Tensors or arrays, of some columns."""
        self._kind, self._kept, self._transform = type, columns and list(columns), None

    def with_format(self, type: Any = None, columns: Any = None, **_: Any) -> Dataset:  # noqa: A002
        """Likewise, another data set."""
        made = self._like(self.index)
        made.set_format(type, columns)
        return made

    def reset_format(self) -> None:
        """Plain values."""
        self.set_format()

    def set_transform(self, transform: Any, *_: Any, **__: Any) -> None:
        """What is made of a batch when it is looked at."""
        self._transform = transform

    def with_transform(self, transform: Any, *_: Any, **__: Any) -> Dataset:
        """Likewise, another data set."""
        made = self._like(self.index)
        made.set_transform(transform)
        return made

    def to_iterable_dataset(self, **_: Any) -> Dataset:
        """As it is: one row after another."""
        return self

    def set_epoch(self, _epoch: int) -> None:
        """The same order."""

    def to_list(self) -> list[dict[str, Any]]:
        """All rows."""
        return list(self)

    def to_pandas(self) -> Any:
        """A frame."""
        import pandas as pd

        return pd.DataFrame({name: self[name] for name in self.bank})

    def save_to_disk(self, *_: Any, **__: Any) -> None:
        """Nothing is written."""

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], features: Any = None, **more: Any) -> Dataset:
        """Of columns."""
        bank = {name: list(values) for name, values in mapping.items()}
        return cls(bank, None, features or features_of(bank, {}), more.get("split"))

    @classmethod
    def from_list(cls, mapping: Sequence[Mapping[str, Any]], **more: Any) -> Dataset:
        """Of rows."""
        names = list(dict.fromkeys(name for row in mapping for name in row))
        return cls.from_dict({name: [row.get(name) for row in mapping] for name in names}, **more)

    @classmethod
    def from_generator(cls, generator: Any, gen_kwargs: Any = None, **more: Any) -> Dataset:
        """Of rows, one by one."""
        return cls.from_list(list(generator(**(gen_kwargs or {}))), split=more.get("split"))

    @classmethod
    def from_pandas(cls, df: Any, **_: Any) -> Dataset:
        """Of a frame."""
        return cls.from_dict(df.to_dict("list"))

    def __repr__(self) -> str:
        return f"Dataset({{\n    features: {self.column_names},\n    num_rows: {len(self)}\n}})"


IterableDataset = Dataset


class DatasetDict(dict[str, Dataset]):
    """``datasets.DatasetDict``: what a data set does, of each."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Dataset, name):
            raise AttributeError(name)
        if name in ("column_names", "num_rows", "shape"):
            return {split: getattr(rows, name) for split, rows in self.items()}

        def each(*args: Any, **kwargs: Any) -> Any:
            made = {split: getattr(rows, name)(*args, **kwargs) for split, rows in self.items()}
            return DatasetDict(made) if isinstance(next(iter(made.values())), Dataset) else None

        return each


def _part(asked: Any, whole: int) -> int | None:
    if asked is None:
        return None
    return round(whole * asked) if isinstance(asked, float) else int(asked)


def _joined(made: Sequence[tuple[Batch, Any]], gone: set[str], *, batched: bool) -> Batch:
    """Columns of what a function was given and has made, of each call."""
    bank: Batch = {}
    for rows, out in made:
        more = out if batched else {name: [value] for name, value in out.items()}
        size = len(next(iter(more.values()))) if more else None
        kept = {n: v for n, v in rows.items() if n not in gone}
        if size is not None:
            kept = {n: v for n, v in kept.items() if len(v) == size}
        for name, values in {**kept, **more}.items():
            bank.setdefault(name, []).extend(_plain(values))
    return bank


def _plain(values: Any) -> list[Any]:
    """Tensors and arrays are kept as lists, as Arrow keeps them."""
    found = values.tolist() if hasattr(values, "tolist") else list(values)
    return [v.tolist() if hasattr(v, "tolist") else v for v in found]


def _as(kind: str | None, values: list[Any]) -> Any:
    if kind in ("torch", "pt") and not isinstance(values[0], str):
        import torch

        try:
            return torch.tensor(np.asarray(values))
        except (TypeError, ValueError):
            return [torch.as_tensor(np.asarray(v)) for v in values]
    if kind in ("numpy", "np"):
        return np.asarray(values)
    return values
