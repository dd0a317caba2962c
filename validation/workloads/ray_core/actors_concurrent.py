"""Actors that serve several calls at once: an asyncio actor, and one with threads."""
# cluster: 4 CPU
# role: validation

import asyncio
import json
import time

import ray


def row(name, start):
    seconds = time.perf_counter() - start
    print(json.dumps({"row": name, "value": seconds, "unit": "s"}), flush=True)


@ray.remote
class Async:
    async def doze(self, seconds):
        await asyncio.sleep(seconds)


@ray.remote(max_concurrency=4)
class Threaded:
    def doze(self, seconds):
        time.sleep(seconds)


ray.init()
many, few = Async.remote(), Async.options(max_concurrency=10).remote()
threaded = Threaded.remote()
ray.get([actor.doze.remote(0) for actor in (many, few, threaded) for _ in range(8)])

start = time.perf_counter()
ray.get([many.doze.remote(0) for _ in range(2000)])
row("asyncio_no_op_2000", start)

start = time.perf_counter()
ray.get([few.doze.remote(0.1) for _ in range(200)])
row("asyncio_ten_at_once_200", start)

start = time.perf_counter()
ray.get([threaded.doze.remote(0.1) for _ in range(80)])
row("threads_four_at_once_80", start)
