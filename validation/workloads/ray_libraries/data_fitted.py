"""Ray Data: what the library's own Python takes per run, task, block and batch."""
# cluster: 4 CPU, 500 MiB object store
# role: calibration

import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


def same(batch):
    return {"id": batch["id"]}


def slow(batch):
    time.sleep(0.01)
    return {"id": batch["id"]}


ray.init()
ray.data.DataContext.get_current().enable_progress_bars = False
ray.data.range(1000).map_batches(same).count()

start = time.perf_counter()
for _ in range(5):
    ray.data.range(10, override_num_blocks=1).materialize()
row("run_5_of_1_task", start)

start = time.perf_counter()
ray.data.range(60_000, override_num_blocks=60).materialize()
row("read_60_blocks", start)

start = time.perf_counter()
ray.data.range(120_000, override_num_blocks=4).map_batches(same, batch_size=200).materialize()
row("map_600_small_batches", start)

start = time.perf_counter()
ray.data.range(96_000, override_num_blocks=12).map_batches(slow, batch_size=1_000).materialize()
row("map_96_batches_of_10ms", start)

start = time.perf_counter()
ray.data.range(50_000, override_num_blocks=10).random_shuffle(seed=1).materialize()
row("shuffle_50k_rows", start)

data = ray.data.range(120_000, override_num_blocks=6).materialize()
start = time.perf_counter()
for _ in data.iter_batches(batch_size=400):
    pass
row("iterate_300_batches", start)

start = time.perf_counter()
for _ in data.iter_batches(batch_size=4_000):
    pass
row("iterate_30_batches", start)
