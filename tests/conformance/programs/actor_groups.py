"""Concurrency groups: separate limits for separate kinds of calls."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote(concurrency_groups={"io": 2, "compute": 1})
class Busy:
    def __init__(self):
        self.now = {"io": 0, "compute": 0, "default": 0}
        self.most = dict(self.now)

    async def visit(self, group):
        self.now[group] += 1
        self.most[group] = max(self.most[group], self.now[group])
        await asyncio.sleep(0.1)
        self.now[group] -= 1

    @ray.method(concurrency_group="io")
    async def read(self):
        await self.visit("io")

    @ray.method(concurrency_group="compute")
    async def crunch(self):
        await self.visit("compute")

    async def plain(self):
        await self.visit("default")

    async def peaks(self):
        return self.most


busy = Busy.remote()
ray.get([busy.read.remote() for _ in range(6)] + [busy.crunch.remote() for _ in range(3)])
ray.get([busy.plain.remote() for _ in range(5)])
print(ray.get(busy.peaks.remote()))
ray.get([busy.plain.options(concurrency_group="compute").remote() for _ in range(3)])
print(ray.get(busy.peaks.remote())["default"])
ray.get([Busy.options(max_concurrency=1).remote().plain.remote() for _ in range(1)])
try:
    ray.get(busy.plain.options(concurrency_group="nowhere").remote(), timeout=5)
    print("accepted")
except Exception as error:
    print(type(error).__name__)
