"""Ray Data: batches for torch, shares of a streaming split, files there and back."""
# cluster: 4 CPU

import json
import tempfile
from pathlib import Path

import numpy as np
import ray


def kept(batch):
    return batch


@ray.remote
def consume(shard, epochs):
    seen = []
    for _ in range(epochs):
        rows = [int(i) for batch in shard.iter_batches(batch_size=16) for i in batch["id"]]
        seen.append((len(rows), len(set(rows))))
    return seen


@ray.remote
def ids(shard):
    return [row["id"] for row in shard.iter_rows()]


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ds = ray.data.range(128, override_num_blocks=8)
print(ds)
print(ds.map_batches(kept).filter(kept))
print(ray.data.range(12, override_num_blocks=1).materialize())
print(ray.get([consume.remote(s, 2) for s in ds.streaming_split(2, equal=True)]))
found = ray.get([ids.remote(s) for s in ds.streaming_split(2)])
print(sorted(found[0] + found[1]) == list(range(128)))
total = 0
for batch in ds.iter_torch_batches(batch_size=32):
    total += int(batch["id"].sum())
    shape, kind = tuple(batch["id"].shape), str(batch["id"].dtype)
print(total, shape, kind)
for batch in ds.iterator().iter_torch_batches(batch_size=50, drop_last=True):
    print(len(batch["id"]))
batches = list(ds.iter_batches(batch_size=16, local_shuffle_buffer_size=64, local_shuffle_seed=3))
values = [int(i) for b in batches for i in b["id"]]
print(len(batches), sorted(values) == list(range(128)), values != list(range(128)))
it = ds.iterator()
print(sum(1 for _ in it.iter_rows()), it.materialize().count())
for first in ds.iter_batches(batch_size=10):
    print(len(first["id"]))
    break
try:
    next(ds.iter_batches())
except TypeError as error:
    print(error.__class__.__name__)
try:
    list(ds.iter_batches(batch_format="none"))
except ValueError as error:
    print(error)

with tempfile.TemporaryDirectory() as made:
    folder = Path(made)
    named = ds.map_batches(lambda b: {"id": b["id"], "t": np.array([f"n{i}" for i in b["id"]])})
    for kind in ("parquet", "csv", "json"):
        getattr(named, f"write_{kind}")(str(folder / kind))
        back = getattr(ray.data, f"read_{kind}")(str(folder / kind))
        print(kind, len(list((folder / kind).iterdir())), back.count(), back.sum("id"))
        print(back.sort("id").take(2), back.columns())
    (folder / "a.txt").write_text("one\n\ntwo\n")
    print(ray.data.read_text(str(folder / "a.txt")).take_all())
    print([r["bytes"] for r in ray.data.read_binary_files(str(folder / "a.txt")).take_all()])
    np.save(folder / "x.npy", np.arange(6).reshape(3, 2))
    print([r["data"].tolist() for r in ray.data.read_numpy(str(folder / "x.npy")).take_all()])
    (folder / "l.json").write_text("\n".join(json.dumps({"a": i}) for i in range(3)))
    print(ray.data.read_json(str(folder / "l.json")).sum("a"))
    try:
        ray.data.read_csv(str(folder / "none"))
    except Exception as error:
        print(type(error).__name__)
