"""Ids of nothing, what references are called, and a wait that ends before its task does."""
# cluster: 4 CPU

import asyncio
import time

import ray


@ray.remote
def slow():
    time.sleep(1)
    return 1


async def late():
    return await asyncio.wait_for(slow.remote(), 0.3)


ray.init()
nil = ray.ObjectRef.nil()
print(nil.hex() == "f" * 56, nil.is_nil(), nil == ray.ObjectRef.nil(), ray.put(1).is_nil())
print(type(ray.put(1)), ray.ObjectRefGenerator, ray.DynamicObjectRefGenerator)
try:
    asyncio.run(late())
except Exception as error:
    print(type(error).__name__, error)
time.sleep(1.5)
print(ray.get(slow.remote()))
