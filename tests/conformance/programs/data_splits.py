"""Ray Data: equal parts, zips, splits, columns: where rows have an order."""
# cluster: 4 CPU

import numpy as np
import ray


def tells(what, *args, **kwargs):
    try:
        print(what(*args, **kwargs))
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[-1])


ray.init()
context = ray.data.DataContext.get_current()
context.enable_progress_bars = False
context.execution_options.preserve_order = True
ds = ray.data.range(200, override_num_blocks=6)
mixed = ds.map_batches(
    lambda b: {"id": b["id"], "k": b["id"] % 3, "t": np.array([f"n{i % 7}" for i in b["id"]])}
)
parts = ds.repartition(8).materialize()
print(parts.num_blocks(), parts.count(), [r["id"] for r in parts.take(3)])
print([d.count() for d in parts.split(4)], [d.count() for d in parts.split(3, equal=True)])
print(ds.repartition(5, shuffle=True).materialize().num_blocks())
print([d.count() for d in ds.split_at_indices([10, 30, 150])])
print([d.take(1) for d in ds.split_at_indices([10, 30])])
print([d.count() for d in ds.split_proportionately([0.2, 0.5])])
train, test = ds.train_test_split(0.25)
print(train.count(), test.count(), test.take(1))
train, test = ds.train_test_split(20, shuffle=True, seed=2)
print(train.count(), test.count(), len({r["id"] for d in (train, test) for r in d.take_all()}))
tells(ds.train_test_split, 1.5)
tells(ds.split_at_indices, [3, 1])
tells(ds.num_blocks)

other = ds.map_batches(lambda b: {"id": b["id"] + 1, "y": b["id"] * 2}).repartition(3)
rows = ds.zip(other).take_all()
print(rows[0], rows[-1], [r["id"] for r in rows] == list(range(200)))
tells(lambda: ds.zip(ray.data.range(3)).take_all())
print(sorted(ds.rename_columns({"id": "n"}).take(1)[0]), ds.rename_columns(["m"]).columns())
print(mixed.drop_columns(["t", "k"]).columns(), mixed.select_columns("k").columns())
print(ds.take_batch(3)["id"].tolist(), ds.take_batch(3, batch_format="pandas").shape)
print(ds.schema().names, [str(t) for t in mixed.schema().types])
print(mixed.schema())
print(ds.to_pandas()["id"].sum(), ds.limit(0).count())
