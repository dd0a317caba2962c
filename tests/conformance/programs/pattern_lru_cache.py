"""A named cache that tasks fill and share; futures avoid double work."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


@ray.remote
def expensive(key):
    return key.upper()


@ray.remote(num_cpus=0)
class Cache:
    def __init__(self, size):
        self.size, self.values = size, {}
        self.hits = self.misses = 0
        self.lock = asyncio.Lock()

    async def get(self, key):
        async with self.lock:
            if key in self.values:
                self.hits += 1
                value = self.values.pop(key)
            else:
                self.misses += 1
                value = await expensive.remote(key)
            self.values[key] = value
            if len(self.values) > self.size:
                del self.values[next(iter(self.values))]
        return value

    async def stats(self):
        return self.hits, self.misses, list(self.values)


@ray.remote
def client(keys):
    cache = ray.get_actor("cache")
    return [ray.get(cache.get.remote(key)) for key in keys]


cache = Cache.options(name="cache").remote(2)
print(ray.get(client.remote("abab")), ray.get(cache.stats.remote()))
print(ray.get(client.remote("cba")), ray.get(cache.stats.remote()))
