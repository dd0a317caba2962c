"""Frames in batches: Arrow's dtypes, a frame's own; dates and decimals; blocks; datasets that differ."""
# cluster: 4 CPU

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import ray
from ray.data.aggregate import ValueCounter


def dtypes_of(ds):
    return {name: str(dtype) for name, dtype in ds.take_batch(batch_format="pandas").dtypes.items()}


def frames():
    gaps = {"i": [1, None, 3], "s": ["a", None, "c"], "b": [True, None, False]}
    ds = ray.data.from_arrow(pa.table(gaps | {"f": pa.array([1, 2, 3], pa.float32())}))
    print(dtypes_of(ds))
    print(ds.to_pandas().to_dict("list"))
    print({name: values.dtype for name, values in ds.take_batch().items()})
    print(ds.map_batches(lambda df: df.assign(x=df["i"] + 1), batch_format="pandas").take_all())
    print(dtypes_of(ray.data.range(3)))
    print(dtypes_of(ray.data.from_items([{"l": [1, 2], "n": np.ones(2), "d": {"x": 1}}])))
    own = pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "n": np.int32([1, 2])})
    print(dtypes_of(ray.data.from_pandas(own)), ray.data.from_pandas(own).schema())
    print(dtypes_of(ray.data.from_pandas(own).map_batches(lambda df: df, batch_format="pandas")))
    kinds = pd.DataFrame({"c": pd.Categorical(["a", "b", "a"])})
    print(dtypes_of(ray.data.from_pandas(kinds)), ray.data.from_pandas(kinds).take_all())
    print(ray.data.from_pandas(kinds).map(lambda row: row).schema())


def values():
    days = ray.data.from_items([{"d": datetime.date(2020, 1, day)} for day in (1, 2)])
    print(days.schema(), days.take_all(), days.take_batch()["d"].dtype, dtypes_of(days))
    print(days.sort("d", descending=True).take(1))
    spans = ray.data.from_items([{"d": datetime.timedelta(seconds=2)}])
    print(spans.schema(), spans.take_batch()["d"].dtype)
    print(ray.data.from_items([{"d": datetime.time(1, 2, 3)}]).schema())
    sums = ray.data.from_items([{"d": Decimal("1.25")}, {"d": Decimal("22.5")}])
    print(sums.schema(), sums.take_batch()["d"].tolist(), sums.sum("d"), sums.mean("d"))


def blocks():
    print([part.count() for part in ray.data.range(10).split(3)])
    print([part.count() for part in ray.data.range(10, override_num_blocks=4).split(3)])
    print([part.count() for part in ray.data.range(100, override_num_blocks=7).split(3)])
    items = ray.data.from_items(list(range(11)), override_num_blocks=3)
    print([len(frame) for frame in ray.get(items.to_pandas_refs())])


def unions():
    one, other = ray.data.from_items([{"x": 1}]), ray.data.from_items([{"y": "q"}])
    print(one.union(other).schema(), one.union(other).take_all())
    print(one.union(other).to_pandas()["y"].tolist())
    half = ray.data.from_items([{"x": 1.5, "z": None}])
    print(one.union(half).schema())
    words = ray.data.from_items([{"v": "cab"[i % 3]} for i in range(6)], override_num_blocks=2)
    print(words.aggregate(ValueCounter("v")))


def outputs():
    rows = ray.data.range(2, override_num_blocks=1)
    for made in ({"a": [1], "b": [1, 2]}, {"a": 5}, 5):
        try:
            rows.map_batches(lambda batch, made=made: made).take_all()
        except ValueError as error:
            print(type(error.cause).__name__, "returned" in str(error), "length 2" in str(error))
    for wrong in (lambda: rows.filter(5), lambda: rows.map_batches(len, batch_format="xx")):
        try:
            print(wrong())
        except ValueError as error:
            print(str(error)[:60])


def main():
    ray.init()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    frames()
    values()
    blocks()
    unions()
    outputs()


if __name__ == "__main__":
    main()
