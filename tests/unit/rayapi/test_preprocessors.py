"""Preprocessors that fail in Ray 2.60 with pandas 3, and what needs packages of its own there."""

from __future__ import annotations

import pytest

from tests.rayapi_parts import run

TEXTS = [{"t": "hello big world"}, {"t": "big big dog"}, {"t": None}, {"t": "hello"}]


def test_counts_of_the_most_frequent_tokens() -> None:
    def main():
        import ray
        from ray.data.preprocessors import CountVectorizer

        ds = ray.data.from_items(TEXTS)
        rows = CountVectorizer(["t"], max_features=2).fit_transform(ds).take_all()
        return [None if row["t"] is None else list(row["t"]) for row in rows]

    assert run(main) == [[1, 1], [2, 0], None, [0, 1]]  # of `big`, 3 times, and `hello`, twice


def test_lists_as_categories() -> None:
    def main():
        import ray
        from ray.data.preprocessors import OneHotEncoder, OrdinalEncoder

        ds = ray.data.from_items([{"x": v} for v in ([1, 2], [1], [1, 2])])
        whole = OrdinalEncoder(["x"], encode_lists=False).fit_transform(ds).take_all()
        hot = OneHotEncoder(["x"]).fit_transform(ds).take_all()
        return [row["x"] for row in whole], [list(row["x"]) for row in hot]

    assert run(main) == ([1, 0, 1], [[0, 1], [1, 0], [0, 1]])


def test_robust_scaler_takes_the_values_at_the_ranks() -> None:
    def main():
        import ray
        from ray.data.preprocessors import RobustScaler

        scaler = RobustScaler(["x"]).fit(ray.data.from_items([{"x": v} for v in range(1, 6)]))
        return scaler.stats_, scaler.transform_batch({"x": [1.0, 3.0, 5.0]})["x"].tolist()

    stats, scaled = run(main)
    assert stats == {"low_quantile(x)": 2.0, "median(x)": 3.0, "high_quantile(x)": 4.0}
    assert scaled == [-1.0, 0.0, 1.0]


def test_what_tells_of_missing_and_zero_values() -> None:
    def main():
        import ray
        from ray.data.aggregate import (
            CountDistinct,
            MissingValuePercentage,
            ValueCounter,
            ZeroPercentage,
        )

        ds = ray.data.from_items([{"x": v} for v in (0, 1, None, 1)])
        return ds.aggregate(
            CountDistinct("x"), ValueCounter("x"), MissingValuePercentage("x"), ZeroPercentage("x"),
            ZeroPercentage("x", ignore_nulls=False, alias_name="of all"),
        )  # fmt: skip

    found = run(main)
    assert found.pop("zero_pct(x)") == pytest.approx(100 / 3)
    assert found == {
        "count_distinct(x)": 2,
            "value_counter(x)": {"values": [0, 1, None], "counts": [1, 2, 1]},
        "missing_pct(x)": 25.0, "of all": 25.0,
    }  # fmt: skip
