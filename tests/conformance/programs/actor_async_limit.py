"""max_concurrency of async actors."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote
class Crowd:
    def __init__(self):
        self.now = 0
        self.most = 0

    async def visit(self):
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.1)
        self.now -= 1

    async def peak(self):
        return self.most


def peak(visits, **options):
    crowd = Crowd.options(**options).remote()
    ray.get([crowd.visit.remote() for _ in range(visits)])
    return ray.get(crowd.peak.remote())


print("three at once", peak(9, max_concurrency=3))
print("one at once", peak(4, max_concurrency=1))
for bad in (0, -1, "x"):
    try:
        Crowd.options(max_concurrency=bad).remote()
        print(bad, "accepted")
    except Exception as error:
        print(bad, type(error).__name__, str(error).splitlines()[0])


@ray.remote
class Mixed:
    def plain(self):
        return "plain"

    async def later(self):
        await asyncio.sleep(0)
        return "later"

    async def fails(self):
        raise LookupError("in async")


mixed = Mixed.remote()
print(ray.get([mixed.plain.remote(), mixed.later.remote()]))
try:
    ray.get(mixed.fails.remote())
except LookupError as error:
    print(type(error).__name__, error.cause)
