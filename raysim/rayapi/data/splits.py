"""Blocks of materialised data between several datasets.

Real counterpart: ``_internal/split.py``, ``_internal/equalize.py``, ``split_proportionately`` of
``ray/data/dataset.py``. A block that is cut stays one object; Ray makes new ones, by tasks.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from raysim.raylibs.data.blocks import Block, sliced


def by_blocks(blocks: tuple[Block, ...], count: int) -> list[list[Block]]:
    """Whole blocks, as ``numpy.array_split`` shares them out."""
    each, more = divmod(len(blocks), count)
    sizes = [each + (i < more) for i in range(count)]
    ends = list(itertools.accumulate(sizes))
    return [list(blocks[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def at(blocks: tuple[Block, ...], indices: list[int]) -> list[list[Block]]:
    """Cut before each of these rows."""
    left = list(reversed(blocks))
    found: list[list[Block]] = []
    begin = 0
    for end in indices:
        mine: list[Block] = []
        while left and begin < end:
            block = left.pop()
            if block.rows > end - begin:
                block, rest = sliced(block, end - begin)
                left.append(rest)
            mine.append(block)
            begin += block.rows
        found.append(mine)
    return [*found, left[::-1]]


def ends(proportions: list[float], rows: int) -> list[int]:
    """Where shares end: of none of them is nothing left."""
    found = [int(rows * share) for share in itertools.accumulate(proportions)]
    less = 0
    for i in range(len(found) - 2, -1, -1):
        found[i] -= less
        if found[i] == found[i + 1]:
            less += 1
            found[i] -= 1
    if any(end <= 0 for end in found):
        raise ValueError("Couldn't create non-empty splits with the given proportions.")
    return found


def check_indices(indices: list[int]) -> None:
    """As Ray checks them."""
    if not indices:
        raise ValueError("indices must be at least of length 1")
    if sorted(indices) != indices:
        raise ValueError("indices must be sorted")
    if indices[0] < 0:
        raise ValueError("indices must be positive")


def check_proportions(proportions: list[float]) -> None:
    """As Ray checks them."""
    if not proportions:
        raise ValueError("proportions must be at least of length 1")
    if sum(proportions) >= 1:
        raise ValueError("proportions must sum to less than 1")
    if any(p <= 0 for p in proportions):
        raise ValueError("proportions must be bigger than 0")


def train_test_split(
    dataset: Any, test_size: Any, *, shuffle: bool = False, seed: int | None = None,
    stratify: str | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """``Dataset.train_test_split``."""
    if shuffle and stratify is not None:
        raise ValueError(
            "Cannot specify both 'shuffle=True' and 'stratify' parameters. Stratified splitting "
            "maintains class proportions and is incompatible with shuffling."
        )
    if stratify is not None:
        return _stratified(dataset, test_size, stratify)
    found = dataset.random_shuffle(seed=seed) if shuffle else dataset
    if isinstance(test_size, float):
        _check_share(test_size)
        first, second = found.split_proportionately([1 - test_size])
        return first, second
    whole = found.materialize()
    rows = whole.count()
    _check_rows(test_size, rows)
    first, second = whole.split_at_indices([rows - test_size])
    return first, second


def _stratified(dataset: Any, test_size: Any, column: str) -> tuple[Any, Any]:
    """The last of each group's rows are for tests."""
    if isinstance(test_size, float):
        _check_share(test_size)
        share = test_size
    else:
        rows = dataset.count()
        _check_rows(test_size, rows)
        share = test_size / rows

    def add_train_flag(group: Any) -> Any:
        rows = len(next(iter(group.values())))
        train = rows - int(rows * share)
        return {**group, _FLAG: np.arange(rows) < train}

    flagged = dataset.groupby(column).map_groups(add_train_flag).materialize()
    first = flagged.filter(lambda row: row[_FLAG]).drop_columns([_FLAG])
    second = flagged.filter(lambda row: not row[_FLAG]).drop_columns([_FLAG])
    return first, second


_FLAG = "__ray_train_test_split_is_train__"
"""Of a column that is there for a moment."""


def _check_share(test_size: float) -> None:
    if not 0 < test_size < 1:
        raise ValueError(
            "If `test_size` is a float, it must be bigger than 0 and smaller than 1. Got "
            f"{test_size}."
        )


def _check_rows(test_size: int, rows: int) -> None:
    if not 0 < test_size < rows:
        raise ValueError(
            "If `test_size` is an int, it must be bigger than 0 and smaller than the size of "
            f"the dataset ({rows}). Got {test_size}."
        )
