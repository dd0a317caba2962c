"""Compiled graphs within asyncio: execute_async, futures, errors."""
# cluster: 4 CPU

import asyncio

import ray
from ray.dag import InputNode, MultiOutputNode

ray.init()


@ray.remote
class Worker:
    def same(self, x):
        return x

    def fail(self, x):
        raise KeyError(x)


@ray.remote(num_cpus=0)
class Async:
    def plain(self, x):
        return x + 1

    async def other(self, x):
        return x


def said(error):
    return type(error).__name__, str(error).split("\n")[0][:90]


a, b = Worker.remote(), Worker.remote()


async def main():
    with InputNode() as given:
        node = b.same.bind(a.same.bind(given))
    graph = node.experimental_compile(enable_asyncio=True)
    try:
        graph.execute(1)
    except ValueError as error:
        print(said(error))
    futures = [await graph.execute_async(k) for k in range(3)]
    print(type(futures[0]).__name__, str(futures[0]).split(",")[1:])
    print([await future for future in futures])
    try:
        await futures[0]
    except ValueError as error:
        print(said(error))
    graph.teardown()

    with InputNode() as given:
        node = MultiOutputNode([a.same.bind(given), b.same.bind(given)])
    graph = node.experimental_compile(enable_asyncio=True)
    futures = await graph.execute_async(5)
    print(await asyncio.gather(*futures))
    graph.teardown()

    with InputNode() as given:
        graph = a.fail.bind(given).experimental_compile(enable_asyncio=True)
    future = await graph.execute_async(5)
    try:
        await future
    except KeyError as error:
        print(type(error).__name__)
    graph.teardown()

    with InputNode() as given:
        node = a.same.bind(given)
    graph = node.experimental_compile(enable_asyncio=True, _max_inflight_executions=2)
    futures = [await graph.execute_async(k) for k in range(2)]
    try:
        await graph.execute_async(5)
    except Exception as error:
        print(said(error))
    print([await future for future in futures])
    graph.teardown()


asyncio.run(main())

actor = Async.remote()
with InputNode() as given:
    graph = actor.plain.bind(given).experimental_compile()
print(ray.get(graph.execute(1)))
try:
    asyncio.run(graph.execute_async(1))
except ValueError as error:
    print(said(error))
graph.teardown()
