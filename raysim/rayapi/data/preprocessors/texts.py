"""Texts as tokens, and tokens as counts.

Real counterpart: ``tokenizer.py``, ``vectorizer.py``, ``hasher.py`` and ``utils.simple_hash`` of
``ray/data/preprocessors``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from raysim.rayapi.data.columns import objects_of
from raysim.rayapi.data.preprocessors.base import OfColumns, Preprocessor, counted, is_null

Split = Callable[[str], list[str]]


def simple_split_tokenizer(text: str) -> list[str]:
    """At every space."""
    return text.split(" ")


def _number(token: Any, count: int) -> int:
    """Which of ``count`` a token falls on; the same on every machine."""
    return int(hashlib.sha256(str(token).encode()).hexdigest(), 16) % count


def _tokens(values: Any, split: Split) -> list[list[str] | None]:
    return [None if is_null(text) else split(text) for text in values]


class Tokenizer(OfColumns):
    """Texts as lists of tokens, split at spaces unless a function is given."""

    _shown = ("columns", "tokenization_fn", "output_columns")
    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Split | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn or simple_split_tokenizer

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        del name
        return objects_of(_tokens(values, self.tokenization_fn))


class HashingVectorizer(OfColumns):
    """How many tokens of a text fall on each of some numbers."""

    _shown = ("columns", "num_features", "tokenization_fn", "output_columns")
    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        num_features: int,
        tokenization_fn: Split | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.num_features = num_features
        self.tokenization_fn = tokenization_fn or simple_split_tokenizer

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        del name
        made: list[list[int] | None] = []
        for tokens in _tokens(values, self.tokenization_fn):
            counts = Counter(_number(token, self.num_features) for token in tokens or ())
            row = [counts[number] for number in range(self.num_features)]
            made.append(None if tokens is None else row)
        return objects_of(made)


class CountVectorizer(OfColumns):
    """How often each token of all texts is in a text, the most frequent ones first."""

    _shown = ("columns", "tokenization_fn", "max_features", "output_columns")

    def __init__(
        self,
        columns: list[str],
        tokenization_fn: Split | None = None,
        max_features: int | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(columns, output_columns)
        self.tokenization_fn = tokenization_fn or simple_split_tokenizer
        self.max_features = max_features

    def _fit(self, ds: Any) -> Preprocessor:
        split = self.tokenization_fn

        def of_series(values: Any) -> Counter[str]:
            return Counter(token for tokens in _tokens(values, split) for token in tokens or ())

        for name, counter in counted(ds, self._columns, of_series).items():
            most = Counter(dict(counter.most_common(self.max_features)))
            self.stats_[f"token_counts({name})"] = most
        return self

    def column(self, name: str, values: Any) -> Any:
        """As above."""
        known = [token for token, _ in self.stats_[f"token_counts({name})"].most_common()]
        made: list[list[int] | None] = []
        for tokens in _tokens(values, self.tokenization_fn):
            counts = Counter(tokens or ())
            made.append(None if tokens is None else [counts[token] for token in known])
        return objects_of(made)


class FeatureHasher(Preprocessor):
    """Columns of counts as one vector: each column's values are added where its name falls."""

    _shown = ("columns", "num_features", "output_column")
    _is_fittable = False

    def __init__(self, columns: list[str], num_features: int, output_column: str) -> None:
        super().__init__()
        self.columns = columns
        self.num_features = num_features
        self.output_column = output_column

    def _transform_pandas(self, df: Any) -> Any:
        made = np.zeros((len(df), self.num_features))
        for name in self.columns:
            made[:, _number(name, self.num_features)] += df[name].to_numpy(dtype=float)
        return df.assign(**{self.output_column: list(made)})

    def get_output_columns(self) -> list[str]:
        """One."""
        return [self.output_column]
