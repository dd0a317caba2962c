"""Exceptions that cross several asyncio actors, are caught on the way, or raised again."""
# cluster: 2 CPU

import asyncio

import ray

ray.init()


class Refused(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)
        self.code = code


class Unfit(ValueError):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code

    def __reduce__(self):
        return Unfit, (self.code, "again")


@ray.remote(num_cpus=0)
class Inner:
    async def refuse(self, code):
        await asyncio.sleep(0.01)
        raise Refused(code, "inner")

    async def unfit(self):
        raise Unfit(7, "first")

    async def items(self, n):
        for i in range(n):
            yield i
        raise Refused(n, "no more")

    async def value(self, x):
        return x


@ray.remote(num_cpus=0)
class Outer:
    def __init__(self, inner):
        self.inner = inner

    async def pass_on(self, code):
        return await self.inner.refuse.remote(code)

    async def catch(self, code):
        try:
            await self.inner.refuse.remote(code)
        except Refused as error:
            return type(error).__name__, error.code, error.args[-1] if error.args else None
        except Exception as error:
            return "other", type(error).__name__

    async def translate(self, code):
        try:
            await self.inner.refuse.remote(code)
        except Exception as error:
            raise KeyError(code) from error

    async def gather(self):
        calls = [self.inner.refuse.remote(1), self.inner.value.remote(2), self.inner.unfit.remote()]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return [type(x).__name__ for x in found]

    async def consume(self, n):
        seen = []
        try:
            async for ref in self.inner.items.options(num_returns="streaming").remote(n):
                seen.append(await ref)
        except Exception as error:
            seen.append(type(error).__name__)
        return seen

    async def first_of(self):
        slow = asyncio.ensure_future(asyncio.sleep(30))
        quick = asyncio.ensure_future(asyncio.wrap_future(self.inner.refuse.remote(3).future()))
        done, pending = await asyncio.wait({slow, quick}, return_when=asyncio.FIRST_EXCEPTION)
        for task in pending:
            task.cancel()
        return len(done), len(pending), type(done.pop().exception()).__name__

    async def times_out(self):
        try:
            await asyncio.wait_for(asyncio.sleep(10), timeout=0.05)
        except TimeoutError:
            return "timed out"


def outcome(ref):
    try:
        return ray.get(ref, timeout=30)
    except Exception as error:
        chain = []
        cause = error
        while cause is not None and len(chain) < 6:
            chain.append(type(cause).__name__)
            cause = getattr(cause, "cause", None)
        return chain, isinstance(error, ray.exceptions.RayTaskError)


inner = Inner.remote()
outer = Outer.remote(inner)
print(outcome(inner.refuse.remote(1)))
print(outcome(outer.pass_on.remote(2)))
print(outcome(outer.catch.remote(3)))
print(outcome(outer.translate.remote(4)))
print(outcome(outer.gather.remote()))
print(outcome(outer.consume.remote(2)))
print(outcome(outer.first_of.remote()))
print(outcome(outer.times_out.remote()))
try:
    ray.get(inner.unfit.remote())
except Unfit as error:
    print(type(error).__name__, isinstance(error, ValueError), error.cause.code, error.cause.args)
try:
    ray.get(inner.refuse.remote(5))
except Refused as error:
    print(error.cause.code, error.cause.args)
print(outcome(inner.value.remote("still alive")))
