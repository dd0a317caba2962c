"""``@serve.batch``: calls of a coroutine method or an async generator that are answered together.

Real counterpart: ``python/ray/serve/batching.py`` (ray 2.60). A batch is formed when
``max_batch_size`` calls are there, or ``batch_wait_timeout_s`` after its first; calls for different
multiplexed models never share one.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any, NamedTuple

from raysim.rayapi import asyncio_loop
from raysim.rayapi.serve.context import SERVING, Serving, here
from raysim.rayapi.serve.exceptions import RayServeException


class _One(NamedTuple):
    """A call that waits for its batch."""

    args: tuple[Any, ...]
    answers: Any
    """A future; or, of a generator, a queue of (item, None) and at the end (None, error)."""
    serving: Serving


_OVER = StopAsyncIteration()
_SENTINELS = (StopIteration, StopAsyncIteration)
"""What a batched generator yields for a call that gets no more."""


class _Batches:
    """Of one method of one instance."""

    def __init__(self, function: Any, options: _Options, owner: tuple[Any, ...]) -> None:
        self._function = function
        self._options = options
        self._owner = owner
        """The instance, or nothing of a function."""
        self._waiting: Any = asyncio_loop.Queue()
        self._held: _One | None = None
        """It did not belong into the batch before."""
        self._free: Any = asyncio_loop.Queue()
        for _ in range(options.max_concurrent_batches):
            self._free.put_nowait(None)
        self.loop = asyncio_loop.running_loop()
        self._task = self.loop.create_task(self._form())
        self._runs: set[Any] = set()

    def put(self, one: _One) -> None:
        """One more call."""
        self._waiting.put_nowait(one)

    async def _form(self) -> None:
        while True:
            batch = await self._next()
            await self._free.get()
            run = self.loop.create_task(self._run(batch))
            self._runs.add(run)
            run.add_done_callback(self._runs.discard)

    async def _next(self) -> list[_One]:
        first, self._held = self._held, None
        batch = [first or await self._waiting.get()]
        size, most = self._options.size, self._options.max_batch_size
        while size(batch) > most:
            _refuse(batch.pop())
            batch.append(await self._waiting.get())
        until_s = self.loop.time() + self._options.batch_wait_timeout_s
        while size(batch) < most:
            one = await self._one(until_s)
            if one is None:
                break
            if size([*batch, one]) > most:
                self.put(one)  # behind those that have come since, as in Ray
                break
            if _model(one) != _model(batch[0]):
                self._held = one
                break
            batch.append(one)
        return batch

    async def _one(self, until_s: float) -> Any:
        """The next call; None when it is late."""
        try:
            return self._waiting.get_nowait()
        except asyncio_loop.QueueEmpty:
            left_s = until_s - self.loop.time()
        if left_s <= 0:
            return None
        try:
            return await asyncio_loop.wait_for(self._waiting.get(), left_s)
        except asyncio_loop.TimeoutError_:
            return None

    async def _run(self, batch: list[_One]) -> None:
        SERVING.set(batch[0].serving)
        columns = [list(column) for column in zip(*(one.args for one in batch), strict=True)]
        answered = self._function(*self._owner, *columns)
        if inspect.isasyncgen(answered):
            await _fill(batch, answered)
        else:
            await _settle(batch, answered)
        self._free.put_nowait(None)


def _refuse(one: _One) -> None:
    """It is larger than a batch may be."""
    error = RuntimeError(
        "Size of item is greater than max_batch_size. Please increase the max_batch_size or "
        "check the implementation of the batch_size_fn."
    )
    if isinstance(one.answers, asyncio_loop.Queue):
        one.answers.put_nowait((None, error))
    else:
        one.answers.set_exception(error)


async def _settle(batch: list[_One], answered: Any) -> None:
    """One answer each, or what was raised."""
    try:
        results = _of_size(await answered, len(batch))
    except BaseException as error:  # noqa: BLE001  (whatever a program raises)
        for one in batch:
            if not one.answers.done():
                one.answers.set_exception(error)
        return
    for one, result in zip(batch, results, strict=True):
        if not one.answers.done():
            one.answers.set_result(result)


async def _fill(batch: list[_One], answered: Any) -> None:
    """Items for those that have not ended."""
    left = dict(enumerate(batch))
    end: BaseException = _OVER
    try:
        async for results in answered:
            for number, result in enumerate(_of_size(results, len(batch))):
                if number in left and any(result is sentinel for sentinel in _SENTINELS):
                    left.pop(number).answers.put_nowait((None, _OVER))
                elif number in left:
                    left[number].answers.put_nowait((result, None))
    except BaseException as error:  # noqa: BLE001  (whatever a program raises)
        end = error
    for one in left.values():
        one.answers.put_nowait((None, end))


def _of_size(results: Any, size: int) -> Any:
    if len(results) != size:
        raise RayServeException(
            "Batched function doesn't preserve batch size. The input list has length "
            f"{size} but the returned list has length {len(results)}."
        )
    return results


def _model(one: _One) -> str:
    return one.serving.model_id


class _Options:
    """May be changed while it runs."""

    def __init__(self, size: int, wait_s: float, concurrent: int, size_fn: Any) -> None:
        self.max_batch_size = size
        self.batch_wait_timeout_s = wait_s
        self.max_concurrent_batches = concurrent
        self._size_fn = size_fn

    def size(self, batch: list[_One]) -> int:
        """As ``batch_size_fn`` counts what was called with, or how many calls."""
        if self._size_fn is None:
            return len(batch)
        size: int = self._size_fn([one.args[0] if one.args else None for one in batch])
        return size


def batch(
    _func: Any = None,
    /,
    max_batch_size: int = 10,
    batch_wait_timeout_s: float = 0.01,
    max_concurrent_batches: int = 1,
    batch_size_fn: Any = None,
) -> Any:
    """``@serve.batch``, with options or without.

    Raises
    ------
    TypeError
        It is no coroutine function, or an option has the wrong type.
    """
    if batch_size_fn is not None and not callable(batch_size_fn):
        raise TypeError(f"batch_size_fn must be a callable or None, got {type(batch_size_fn)}")
    _check(max_batch_size, batch_wait_timeout_s, max_concurrent_batches)

    def decorate(function: Any) -> Any:
        options = _Options(
            max_batch_size, batch_wait_timeout_s, max_concurrent_batches, batch_size_fn
        )
        if inspect.isasyncgenfunction(function):
            return _with_options(_generator(function, options), options)
        if not inspect.iscoroutinefunction(function):
            raise TypeError("Functions decorated with @serve.batch must be 'async def'")
        return _with_options(_coroutine(function, options), options)

    if _func is not None and not callable(_func):
        raise TypeError("@serve.batch can only be used to decorate functions or methods.")
    return decorate if _func is None else decorate(_func)


def _coroutine(function: Any, options: _Options) -> Any:
    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        future = asyncio_loop.new_future()
        _put(function, options, inspect.signature(function).bind(*args, **kwargs).args, future)
        return await future

    return call


def _generator(function: Any, options: _Options) -> Any:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        items: Any = asyncio_loop.Queue()
        _put(function, options, inspect.signature(function).bind(*args, **kwargs).args, items)
        return _items(items)

    return call


async def _items(queue: Any) -> AsyncIterator[Any]:
    item, error = await queue.get()
    while error is None:
        yield item
        item, error = await queue.get()
    if error is not _OVER:
        raise error


def _put(function: Any, options: _Options, given: tuple[Any, ...], answers: Any) -> None:
    of_method = next(iter(inspect.signature(function).parameters), "") == "self"
    owner, items = (given[:1], given[1:]) if of_method else ((), given)
    serving = here("serve.get_replica_context()")
    batches = serving.replica.kept(function, owner, lambda: _Batches(function, options, owner))
    batches.put(_One(items, answers, serving))


def _with_options(call: Any, options: _Options) -> Any:
    """What programs may ask and change while it runs."""

    def setter(name: str) -> Callable[[Any], None]:
        return lambda value: setattr(options, name, value)

    call.set_max_batch_size = setter("max_batch_size")
    call.set_batch_wait_timeout_s = setter("batch_wait_timeout_s")
    call._get_max_batch_size = lambda: options.max_batch_size  # noqa: SLF001
    call._get_batch_wait_timeout_s = lambda: options.batch_wait_timeout_s  # noqa: SLF001
    return call


def _check(size: Any, wait_s: Any, concurrent: Any) -> None:
    if not isinstance(size, int) and not (isinstance(size, float) and size.is_integer()):
        raise TypeError(f"max_batch_size must be integer >= 1, got {size}")
    if size < 1:
        raise ValueError(f"max_batch_size must be an integer >= 1, got {size}")
    if not isinstance(wait_s, float | int):
        raise TypeError(f"batch_wait_timeout_s must be a float >= 0, got {wait_s}")
    if wait_s < 0:
        raise ValueError(f"batch_wait_timeout_s must be a float >= 0, got {wait_s}")
    if not isinstance(concurrent, int) or concurrent < 1:
        raise TypeError(f"max_concurrent_batches must be an integer >= 1, got {concurrent}")
