"""Ray Data's maps whose callable class is a coroutine: batches and rows side by side, in order."""
# cluster: 2 CPU

import asyncio
import time

import ray

ray.init()


class Batches:
    def __init__(self, seconds):
        self.seconds = seconds
        self.running = 0
        self.most = 0

    async def __call__(self, batch):
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        yield {"id": batch["id"], "most": [self.most] * len(batch["id"])}


class Rows:
    async def __call__(self, row):
        await asyncio.sleep(0.01 * (10 - row["id"] % 10))
        return {"square": row["id"] ** 2}


class Breaks:
    async def __call__(self, batch):
        raise ValueError("no answer")


class NeverMade:
    def __init__(self):
        raise ValueError("no weights")

    def __call__(self, batch):
        return batch


one = ray.data.range(32, override_num_blocks=1)
began = time.time()
rows = one.map_batches(
    Batches, fn_constructor_args=(2.0,), batch_size=4, concurrency=1, max_concurrency=2
).take_all()
took = time.time() - began
print("batches", [row["id"] for row in rows][-3:], "at once", max(row["most"] for row in rows))
print("in two turns of four", 4.0 <= took < 9.0)
print("rows", one.map(Rows, concurrency=1).take_all()[:3])
several = ray.data.range(64, override_num_blocks=8)
rows = several.map_batches(
    Batches, fn_constructor_args=(1.0,), batch_size=8, concurrency=1, max_concurrency=4
).take_all()
print("tasks at once", sorted(row["id"] for row in rows) == list(range(64)))
print("of several", max(row["most"] for row in rows) > 1)
for cls in (Breaks, NeverMade):
    try:
        one.map_batches(cls, batch_size=4, concurrency=1).take_all()
    except Exception as error:
        print(cls.__name__, type(error).__name__, "no " in str(error))
