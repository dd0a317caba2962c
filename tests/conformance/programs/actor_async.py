"""Async actors: many calls at once in one event loop."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote
class Gate:
    def __init__(self):
        self.event = asyncio.Event()
        self.waiting = 0

    async def wait(self, who):
        self.waiting += 1
        await self.event.wait()
        return who

    async def count(self):
        return self.waiting

    async def open(self):
        self.event.set()
        return "open"


@ray.remote
def square(x):
    return x * x


@ray.remote
class Gatherer:
    async def gather(self, n):
        return await asyncio.gather(*(square.remote(i) for i in range(n)))

    async def one_by_one(self, refs):
        return [await ref for ref in refs]

    async def order(self):
        seen = []

        async def step(name, pause):
            await asyncio.sleep(pause)
            seen.append(name)

        await asyncio.gather(step("slow", 0.3), step("fast", 0.1), step("now", 0))
        return seen


gate = Gate.remote()
refs = [gate.wait.remote(i) for i in range(5)]
while ray.get(gate.count.remote()) < 5:
    pass
print(len(ray.wait(refs, timeout=0)[0]), ray.get(gate.open.remote()), ray.get(refs))
gatherer = Gatherer.remote()
print(ray.get(gatherer.gather.remote(4)))
print(ray.get(gatherer.one_by_one.remote([square.remote(7), ray.put("put")])))
print(ray.get(gatherer.order.remote()))


async def main():
    values = await asyncio.gather(square.remote(2), gatherer.gather.remote(2))
    done, pending = await asyncio.wait([asyncio.ensure_future(wrap(square.remote(9)))])
    return values, [task.result() for task in done], len(pending)


async def wrap(ref):
    return await ref


print(asyncio.run(main()))
