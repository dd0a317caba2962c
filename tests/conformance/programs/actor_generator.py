"""Methods that yield, in ordinary and async actors."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote(num_cpus=0)
class Source:
    def __init__(self):
        self.given = 0

    def stream(self, n):
        for i in range(n):
            self.given += 1
            yield i

    def count(self):
        return self.given


@ray.remote(num_cpus=0)
class AsyncSource:
    async def stream(self, n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i * 10

    async def consume(self, source):
        return [await ref async for ref in source.stream.remote(3)]


source = Source.remote()
gen = source.stream.remote(3)
print(type(gen).__name__, [ray.get(ref) for ref in gen], ray.get(source.count.remote()))
stream = AsyncSource.remote()
print([ray.get(ref) for ref in stream.stream.remote(3)])
print(ray.get(stream.consume.remote(source)))


async def main():
    out = []
    async for ref in stream.stream.remote(2):
        out.append(await ref)
    return out


print(asyncio.run(main()))
both = [source.stream.remote(2), source.stream.remote(2)]
print([[ray.get(ref) for ref in gen] for gen in both], ray.get(source.count.remote()))
