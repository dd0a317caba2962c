"""Ray Data: rows are read, mapped in batches, shuffled and counted; nothing leaves the machine."""
# cluster: 4 CPU, 500 MiB object store
# role: validation

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def double(batch):
    time.sleep(0.02)
    return {"id": batch["id"] * 2}


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ray.data.range(1000).map_batches(double).count()

start = time.perf_counter()
ray.data.range(200_000, override_num_blocks=20).map_batches(double, batch_size=2_000).materialize()
row("map_100_batches", start)

start = time.perf_counter()
ray.data.range(200_000, override_num_blocks=20).random_shuffle(seed=1).materialize()
row("shuffle_200k_rows", start)

start = time.perf_counter()
for _ in ray.data.range(200_000, override_num_blocks=20).iter_batches(batch_size=1_000):
    pass
row("iterate_200_batches", start)
