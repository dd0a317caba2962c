"""Constructors of asyncio actors: in the event loop, also as coroutines."""
# cluster: 2 CPU

import asyncio
import time

import ray


@ray.remote
class Ticker:
    """Starts a coroutine that goes on beside its methods."""

    async def __init__(self, first):
        self.ticks = first
        await asyncio.sleep(0.5)
        self.task = asyncio.get_running_loop().create_task(self.tick())

    async def tick(self):
        while True:
            await asyncio.sleep(1)
            self.ticks += 1

    async def get(self):
        return self.ticks


@ray.remote
class Plain:
    """A constructor that is no coroutine runs there too."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()
        self.queue = asyncio.Queue()
        self.queue.put_nowait("first")

    async def same(self):
        return self.loop is asyncio.get_running_loop(), await self.queue.get()


@ray.remote
class Broken:
    """Fails after it has waited."""

    async def __init__(self):
        await asyncio.sleep(0.1)
        raise ValueError("not today")

    async def get(self):
        return 1


ray.init()
ticker = Ticker.remote(3)
began = time.time()
print(ray.get(ticker.get.remote()), time.time() - began >= 0.4)
time.sleep(2.5)
print(ray.get(ticker.get.remote()))
print(ray.get(Plain.remote().same.remote()))
try:
    ray.get(Broken.remote().get.remote())
except ray.exceptions.RayActorError as error:
    print(type(error).__name__, str(error).splitlines()[-1])
