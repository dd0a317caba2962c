"""What is known of a dataset that has not run; columns that are not there; nothing of something."""
# cluster: 4 CPU

import tempfile

import numpy as np
import pyarrow as pa
import ray
from ray.data.aggregate import ValueCounter
from ray.data.expressions import col


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        cause = getattr(error, "cause", error)
        first = str(error).splitlines()[0] if cause is error else ""
        print(label, type(error).__name__, type(cause).__name__, first)


def writes_into(batch):
    batch["id"] += 1
    return batch


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.from_items([{"a": i, "b": i % 2, "c": str(i)} for i in range(4)])
others = ds.rename_columns(["x", "y", "z"])
for made in (
    ds.limit(2), ds.sort("a"), ds.select_columns(["a"]), ds.rename_columns({"a": "z"}),
    ds.filter(expr=col("a") > 1), ds.repartition(2), ds.random_shuffle(), ds.union(ds),
    ds.zip(others), ds.groupby("a").count(), ds.drop_columns(["a"]),
    ds.with_column("d", col("a") * 1.5), ds.randomize_block_order(), ds.map(lambda row: row),
):  # fmt: skip
    print(made)
ds.set_name("mine")
print(ds.materialize().limit(1))
say("select gone", lambda: ds.select_columns(["a"]).select_columns(["b"]).take(1))
say("select missing", lambda: ds.select_columns(["q"]).take(1))
say("drop missing", lambda: ds.drop_columns(["q"]).take(1))
say("rename missing", lambda: ds.rename_columns({"q": "z"}).take(1))
say("sort missing", lambda: ds.sort("q").take(1))
say("no columns", lambda: ds.select_columns([]).count())
say("no rows", lambda: (ray.data.range(-1).count(), ray.data.range(0).count()))
say("no blocks", lambda: ray.data.range(4, override_num_blocks=0).count())
say("no batches", lambda: list(ds.iter_batches(batch_size=0)))
say("stratified", lambda: [
    sorted(row["b"] for row in part.take_all()) for part in ds.train_test_split(0.5, stratify="b")
])  # fmt: skip
say("both", lambda: ds.train_test_split(0.5, stratify="b", shuffle=True))
blocks = [pa.table({"a": [1]}), pa.table({"a": [2, 3]})]
say("blocks", lambda: ray.data.from_blocks(blocks).sort("a").take_all())
say("base", lambda: ray.data.range(2).schema().base_schema)
nulls = ray.data.from_items([{"v": v} for v in (1, None, 1)], override_num_blocks=1)
say("counted", lambda: nulls.aggregate(ValueCounter("v"))["value_counter(v)"]["counts"])
say("read-only", lambda: ray.data.range(4).map_batches(writes_into).take_all())
say("no batch", lambda: ray.data.range(4).map_batches(lambda batch: 5).take_all())
say("no rows of it", lambda: ray.data.range(4).flat_map(lambda row: 5).take_all())
say("no function", lambda: col("a").fill_null(0))
with tempfile.TemporaryDirectory() as folder:
    ray.data.range(3).write_json(folder, pandas_json_args_fn=lambda: {"double_precision": 2})
    gone = f"{folder}/gone.json"
    say("json", lambda: ray.data.read_json([folder, gone], ignore_missing_paths=True).count())
    say("extension", lambda: ray.data.read_json(folder, file_extensions=["csv"]).count())
dates = ray.data.from_items([{"v": np.datetime64("2024-01-02", "s"), "w": 1.5}])
print(dates.schema())
