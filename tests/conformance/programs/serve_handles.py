"""Deployments composed by handles: values, methods, streams, responses as arguments, functions."""
# cluster: 8 CPU

import asyncio
import time

import ray
from ray import serve

ray.init()


@serve.deployment(num_replicas=2)
class Adder:
    def __init__(self, more):
        self.more = more

    def __call__(self, x):
        return x + self.more

    async def times(self, x, by=2):
        await asyncio.sleep(0.05)
        return x * by

    def count(self, n):
        for i in range(n):
            yield i

    async def letters(self, word):
        for letter in word:
            await asyncio.sleep(0.01)
            yield letter


@serve.deployment
def shout(text: str) -> str:
    return text.upper()


@serve.deployment
class Front:
    def __init__(self, adder, shout):
        self.adder = adder
        self.shout = shout

    async def __call__(self, x):
        added = self.adder.remote(x)
        doubled = await self.adder.times.remote(added, by=3)
        return doubled, await self.shout.remote("done")

    async def joined(self, word):
        return [
            c async for c in self.adder.options(method_name="letters", stream=True).remote(word)
        ]

    async def together(self, n):
        return await asyncio.gather(*[self.adder.remote(i) for i in range(n)])


handle = serve.run(Front.bind(Adder.bind(10), shout.bind()))
print(handle)
print(handle.remote(1).result())
print(handle.joined.remote("abc").result())
print(handle.together.remote(5).result())

adder = serve.get_deployment_handle("Adder", "default")
print(adder.remote(5).result(), adder.times.remote(5).result())
print(list(adder.options(method_name="count", stream=True).remote(4)))
print(sorted(r.result() for r in [adder.remote(i) for i in range(20)]))
print(adder.remote(ray.put(100)).result())
chain = adder.remote(1)
for _ in range(3):
    chain = adder.remote(chain)
print(chain.result())
print(serve.get_app_handle("default").remote(0).result())
status = serve.status().applications["default"]
print(status.status, sorted(status.deployments))
print({name: d.replica_states for name, d in sorted(status.deployments.items())})
began = time.time()
print([r.result() for r in [adder.times.remote(i) for i in range(4)]], time.time() - began < 2)
serve.delete("default")
print(list(serve.status().applications))
serve.shutdown()
