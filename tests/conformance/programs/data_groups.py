"""Ray Data: groups, totals, unique values, a program's own aggregation."""
# cluster: 4 CPU

import numpy as np
import ray
from ray.data.aggregate import AggregateFn, Count, Max, Mean, Min, Std, Sum


def ordered(ds, key="k"):
    return sorted(ds.take_all(), key=lambda r: r[key])


def rounded(rows):
    return [{n: round(v, 6) if isinstance(v, float) else v for n, v in r.items()} for r in rows]


def spread(group):
    return {"k": group["k"][:1], "spread": np.array([group["v"].max() - group["v"].min()])}


class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, group):
        return {"k": group["k"], "share": self.by * group["v"] / group["v"].sum()}


ray.init()
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
context.default_hash_shuffle_parallelism = 4
ds = ray.data.range(60, override_num_blocks=5).map_batches(
    lambda b: {"k": b["id"] % 4, "v": b["id"] * 0.5, "id": b["id"]}
)
print(ordered(ds.groupby("k").count()))
print(ordered(ds.groupby("k").sum("v")))
print(rounded(ordered(ds.groupby("k").mean("v"))))
print(ordered(ds.groupby("k").min(["v", "id"])))
print(ordered(ds.groupby("k").max("id")))
print(rounded(ordered(ds.groupby("k").std("v"))))
own = AggregateFn(
    init=lambda k: 0, accumulate_row=lambda a, row: a + int(row["id"]) ** 2,
    merge=lambda a, b: a + b, name="squares",
)  # fmt: skip
print(ordered(ds.groupby("k").aggregate(Count(), Sum("id"), own)))
print(sorted((r["k"], r["spread"]) for r in ds.groupby("k").map_groups(spread).take_all()))
scaled = ds.groupby("k").map_groups(Scale, fn_constructor_args=(2,), concurrency=1)
print(scaled.count(), round(scaled.sum("share"), 6))
two = ds.map_batches(lambda b: {**b, "odd": b["id"] % 2}).groupby(["k", "odd"]).count()
print(sorted((r["k"], r["odd"], r["count()"]) for r in two.take_all()))
print(ds.sum("id"), ds.mean("v"), ds.min("v"), ds.max("id"), round(ds.std("v"), 6))
print(ds.sum(["id", "v"]), rounded([ds.aggregate(Min("id"), Max("id"), Mean("id"), Std("id"))]))
print(sorted(ds.unique("k")), ray.data.range(5).sum())
names = ray.data.from_items([{"n": "b", "x": 1}, {"n": "a", "x": None}, {"n": "b", "x": 3}])
print(names.sum("x"), sorted(names.unique("n")), ordered(names.groupby("n").sum("x"), "n"))
print(names.min("n"), names.count(), names.sort("n").take(1))
try:
    ds.groupby("none").count().take_all()
except Exception as error:
    print("none" in str(error))
