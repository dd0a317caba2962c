"""Ray Data: maps, filters, classes in actors, limits, unions and shuffles of ranges and items."""
# cluster: 4 CPU

import numpy as np
import ray


class Add:
    def __init__(self, k):
        self.k = k

    def __call__(self, batch):
        return {"id": batch["id"] + self.k}


def odd(row):
    return row["id"] % 2 == 1


def twice(row):
    return [row, {"id": -row["id"]}]


def fails(batch):
    if 7 in batch["id"]:
        raise ValueError("seven")
    return batch


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.range(100, override_num_blocks=5)
print(ds.count())
print(ds.map_batches(lambda b: {"x": b["id"] * 2}).sum("x"))
print(sorted(r["id"] for r in ds.filter(odd).limit(1000).take_all())[:5])
print(ds.map(lambda r: {"y": r["id"] ** 2}).sum("y"))
print(ds.flat_map(twice).count(), ds.flat_map(twice).sum("id"))
added = ds.map_batches(Add, fn_constructor_args=(10,), concurrency=2)
print(added.sum("id"), added.count())
print(len(ds.limit(7).take_all()), len(ds.take(3)))
print(ds.union(ray.data.range(20)).count())
kept = ds.materialize()
print(kept.num_blocks(), kept.count(), kept.size_bytes())
mixed = ds.random_shuffle(seed=3)
print(
    sorted(r["id"] for r in mixed.take_all()) == list(range(100)), mixed.take_all() != ds.take_all()
)
sizes = [len(b["id"]) for b in ds.iter_batches(batch_size=30)]
print(sum(sizes), max(sizes))
items = ray.data.from_items([{"name": f"n{i}", "v": np.ones(2) * i} for i in range(4)])
print(sorted((r["name"], float(r["v"].sum())) for r in items.take_all()))
print(sorted(r["item"] for r in ray.data.from_items([3, 1, 2]).take_all()))
print(ray.data.range_tensor(4, shape=(2, 2)).take(1)[0]["data"].shape)
print(items.add_column("w", lambda b: np.ones(len(b["name"]), int), batch_format="numpy").sum("w"))
print(sorted(items.select_columns(["name"]).take(1)[0]))
try:
    ds.map_batches(fails).materialize()
except Exception as error:
    print(type(error).__name__, "seven" in str(error))
