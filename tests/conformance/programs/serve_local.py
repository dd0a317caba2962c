"""Ray Serve: an application in the process that asks, for tests."""
# cluster: 4 CPU

import asyncio

import ray
from ray import serve


def say(label, call):
    try:
        print(label, call())
    except Exception as error:
        print(label, type(error).__name__, error)


@serve.deployment
class Inner:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor

    async def plus(self, x):
        await asyncio.sleep(0.01)
        return x + self.factor

    def count(self, n):
        yield from range(n)

    def fails(self):
        raise ValueError("no")


@serve.deployment(user_config={"a": 1})
class Outer:
    def __init__(self, inner):
        self.inner = inner
        self.config = None

    def reconfigure(self, config):
        self.config = config

    async def __call__(self, x):
        product = await self.inner.remote(x)
        return [product, await self.inner.plus.remote(product), self.config]


@serve.deployment
class Models:
    @serve.multiplexed(max_num_models_per_replica=2)
    async def load(self, model_id):
        return model_id

    async def __call__(self):
        return await self.load(serve.get_multiplexed_model_id())


@serve.deployment
class Context:
    def __call__(self):
        return serve.get_replica_context().app_name


@serve.deployment
class Fails:
    def __init__(self):
        raise RuntimeError("not today")


@serve.deployment
def doubled(x):
    return 2 * x


def run(app):
    return serve.run(app, _local_testing_mode=True)


async def awaited(handle):
    return await handle.remote(6)


ray.init()
outer, inner = run(Outer.bind(Inner.bind(3))), run(Inner.bind(2))
say("composed", lambda: outer.remote(2).result())
say("coroutine", lambda: inner.plus.remote(5).result())
say("stream", lambda: list(inner.options(stream=True).count.remote(3)))
say("error", lambda: inner.fails.remote().result())
say("no method", lambda: inner.nothing.remote().result())
say("reference", lambda: inner.remote(2)._to_object_ref_sync())
say("timeout", lambda: inner.plus.remote(5).result(timeout_s=0.001))
say("response given on", lambda: inner.remote(inner.remote(4)).result())
say("awaited", lambda: asyncio.run(awaited(inner)))
say("function", lambda: run(doubled.bind()).remote(4).result())
say("model", lambda: run(Models.bind()).options(multiplexed_model_id="7").remote().result())
say("context", lambda: run(Context.bind()).remote().result())
say("constructor", lambda: run(Fails.bind()))
