"""Ray Data: the order of groups, small Parquet files, categories, keys that are not there."""
# cluster: 4 CPU

import tempfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import ray


def tells(what):
    try:
        print(what())
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[-1])


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
words = ["zebra", "apple", "mango", "kiwi", "fig", "zebra", "fig", "apple", "lime"]
ds = ray.data.from_items([{"k": k, "v": i} for i, k in enumerate(words)], override_num_blocks=1)
print([(r["k"], r["count()"]) for r in ds.groupby("k", num_partitions=1).count().take_all()])
firsts = ds.groupby("k", num_partitions=1).map_groups(lambda g: {"k": g["k"][:1]}).take_all()
print([r["k"] for r in firsts])
parts = ds.repartition(3, keys=["k"]).materialize()
print(sorted(sorted(set(t["k"].to_pylist())) for t in ray.get(parts.to_arrow_refs())))
odd = ray.data.range(20, override_num_blocks=1).map(lambda r: {"k": r["id"] % 7, "x": r["id"] / 2})
parts = odd.repartition(3, keys=["k"]).materialize()
print(sorted(sorted(set(t["k"].to_pylist())) for t in ray.get(parts.to_arrow_refs())))

with tempfile.TemporaryDirectory() as made:
    for i in range(6):
        pq.write_table(pa.table({"i": list(range(3 * i, 3 * i + 3))}), Path(made, f"{i}.parquet"))
    read = ray.data.read_parquet(made)
    print([len(b["i"]) for b in read.iter_batches(batch_size=None)], read.sum("i"))
    print(ray.data.read_parquet(made, override_num_blocks=4).materialize().num_blocks())

frame = pd.DataFrame({"c": pd.Categorical(["b", "a", "b", None]), "n": [1, 2, 3, 4]})
ds = ray.data.from_pandas(frame).map_batches(lambda b: b, batch_format="pyarrow")
print([str(t) for t in ds.schema().types], ds.to_pandas()["c"].dtype)
print(ds.take_all(), ds.groupby("c", num_partitions=1).count().take_all())
tells(lambda: ds.sort("c").take_all())
tells(lambda: odd.groupby("z").count().take_all())
tells(lambda: odd.groupby("z").map_groups(lambda g: g).take_all())
