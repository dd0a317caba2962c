"""``Pool``: the interface of ``multiprocessing.Pool`` on actors.

Real counterpart: ``python/ray/util/multiprocessing/pool.py`` of ray 2.60: one actor per process,
chunks of calls handed out in turn. Results are looked at when they are asked for, not by a thread;
callbacks therefore run at that moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from math import ceil
from multiprocessing import TimeoutError  # noqa: A004  (part of the interface)
from typing import Any


def _ray() -> Any:
    from raysim.rayapi import api

    return api


class PoolTaskError(Exception):
    """Around what a call raised, on its way back."""

    def __init__(self, underlying: BaseException) -> None:
        super().__init__(underlying)
        self.underlying = underlying


class PoolActor:
    """One process of the pool."""

    def __init__(
        self, initializer: Callable[..., Any] | None = None, initargs: Iterable[Any] | None = None
    ) -> None:
        if initializer is not None:
            initializer(*(initargs or ()))

    def ping(self) -> None:
        """Answer when it is there."""

    def run_batch(self, func: Callable[..., Any], batch: list[Any]) -> list[Any]:
        """Calls, one after the other."""
        results = []
        for args, kwargs in batch:
            try:
                results.append(func(*(args or ()), **(kwargs or {})))
            except Exception as error:  # noqa: BLE001  (whatever the call raises)
                results.append(PoolTaskError(error))
        return results


for _class in (PoolTaskError, PoolActor):
    _class.__module__ = "ray.util.multiprocessing.pool"


class AsyncResult:
    """Results that will be there."""

    def __init__(
        self,
        refs: list[Any],
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
        *,
        single_result: bool = False,
    ) -> None:
        self._refs = refs
        self._callback = callback
        self._error_callback = error_callback
        self._single = single_result
        self._results: list[Any] | None = None

    def wait(self, timeout: float | None = None) -> None:
        """Until all are there, or so many seconds."""
        ray = _ray()
        if self._results is not None:
            return
        ready, _ = ray.wait(self._refs, num_returns=len(self._refs), timeout=timeout)
        if len(ready) < len(self._refs):
            return
        self._results = [result for batch in ray.get(self._refs) for result in batch]
        failed = [r for r in self._results if isinstance(r, PoolTaskError)]
        if failed and self._error_callback is not None:
            self._error_callback(failed[0])
        elif not failed and self._callback is not None:
            self._callback(self._results[0] if self._single else self._results)

    def get(self, timeout: float | None = None) -> Any:
        """The results."""
        self.wait(timeout)
        if self._results is None:
            raise TimeoutError
        for result in self._results:
            if isinstance(result, PoolTaskError):
                raise result.underlying
        return self._results[0] if self._single else self._results

    def ready(self) -> bool:
        """Whether all are there."""
        self.wait(0)
        return self._results is not None

    def successful(self) -> bool:
        """Whether none raised."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return not any(isinstance(r, PoolTaskError) for r in self._results or [])


class IMapIterator:
    """Results of ``imap``: as many chunks run as there are processes."""

    def __init__(
        self, pool: Pool, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None,
        *, ordered: bool,
    ) -> None:  # fmt: skip
        self._pool = pool
        self._func = func
        self._ordered = ordered
        sized = hasattr(iterable, "__len__")
        self._chunksize = chunksize or (pool.chunksize_for(iterable) if sized else 1)
        self._source = iter(iterable)
        self._running: deque[Any] = deque()
        self._ready: deque[Any] = deque()
        for _ in range(pool.size):
            self._submit()

    def _submit(self) -> None:
        chunk: list[Any] = [((item,), {}) for item in islice(self._source, self._chunksize)]
        if chunk:
            self._running.append(self._pool.submit(self._func, chunk))

    def __iter__(self) -> IMapIterator:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """The next result."""
        if not self._ready:
            if not self._running:
                raise StopIteration
            ray = _ray()
            among = [self._running[0]] if self._ordered else list(self._running)
            ready, _ = ray.wait(among, num_returns=1, timeout=timeout)
            if not ready:
                raise TimeoutError
            self._running.remove(ready[0])
            self._ready.extend(ray.get(ready[0]))
            self._submit()
        return self._ready.popleft()


class Pool:
    """Processes that calls are handed out to."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] | None = None,
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        del context
        self._closed = False
        self._initial = (initializer, initargs)
        self._max_batches = maxtasksperchild or -1
        self._stopping: list[Any] = []
        self._next = 0
        ray = _ray()
        if not ray.is_initialized():
            ray.init(address=ray_address, **({} if ray_address else {"num_cpus": processes}))
        cpus = int(ray.cluster_resources().get("CPU", 0))
        processes = cpus if processes is None else processes
        if processes <= 0:
            raise ValueError("Processes in the pool must be >0.")
        if cpus < processes:
            raise ValueError(
                f"Tried to start a pool with {processes} processes on an existing ray cluster, "
                f"but there are only {cpus} CPUs in the ray cluster."
            )
        options = {"num_cpus": 0, **(ray_remote_args or {})}
        self._make = ray.remote(**options)(PoolActor)
        self._actors = [self._new_actor() for _ in range(processes)]
        ray.get([actor.ping.remote() for actor, _ in self._actors])

    @property
    def size(self) -> int:
        """How many processes."""
        return len(self._actors)

    def _new_actor(self) -> tuple[Any, int]:
        return self._make.remote(*self._initial), 0

    def submit(self, func: Callable[..., Any], batch: list[Any]) -> Any:
        """A batch of calls to the next process."""
        index = self._next = (self._next + 1) % len(self._actors)
        actor, batches = self._actors[index]
        ref = actor.run_batch.remote(func, batch)
        self._actors[index] = (actor, batches + 1)
        if batches + 1 == self._max_batches:
            self._stopping.append(actor.__ray_terminate__.remote())
            self._actors[index] = self._new_actor()
        return ref

    def chunksize_for(self, iterable: Iterable[Any]) -> int:
        """Four chunks per process, as ``multiprocessing`` has it."""
        return max(1, ceil(len(list(iterable)) / (len(self._actors) * 4)))

    def apply(
        self, func: Callable[..., Any], args: Any = None, kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One call, waited for."""
        return self.apply_async(func, args, kwargs).get()

    def apply_async(
        self,
        func: Callable[..., Any],
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
    ) -> AsyncResult:
        """One call."""
        self._check_running()
        ref = self.submit(func, [(args, kwargs)])
        return AsyncResult([ref], callback, error_callback, single_result=True)

    def _map(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
        *,
        unpack: bool = False,
    ) -> AsyncResult:
        self._check_running()
        listed: list[Any] = [(tuple(item) if unpack else (item,), {}) for item in iterable]
        size = chunksize or self.chunksize_for(listed)
        refs = [self.submit(func, listed[i : i + size]) for i in range(0, len(listed), size)]
        return AsyncResult(refs, callback, error_callback)

    def map(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """Results in order, waited for."""
        found: list[Any] = self._map(func, iterable, chunksize).get()
        return found

    def map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
    ) -> AsyncResult:
        """Results in order."""
        return self._map(func, iterable, chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> list[Any]:
        """``map`` with several arguments."""
        found: list[Any] = self._map(func, iterable, chunksize, unpack=True).get()
        return found

    def starmap_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Any],
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
    ) -> AsyncResult:
        """``map_async`` with several arguments."""
        return self._map(func, iterable, None, callback, error_callback, unpack=True)

    def imap(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = 1
    ) -> IMapIterator:
        """Results in order, one by one."""
        self._check_running()
        return IMapIterator(self, func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = 1
    ) -> IMapIterator:
        """Results as they come."""
        self._check_running()
        return IMapIterator(self, func, iterable, chunksize, ordered=False)

    def _check_running(self) -> None:
        if self._closed:
            raise ValueError("Pool not running")

    def __enter__(self) -> Pool:
        self._check_running()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def close(self) -> None:
        """No more work; processes end when they have done theirs."""
        self._stopping += [actor.__ray_terminate__.remote() for actor, _ in self._actors]
        self._closed = True

    def terminate(self) -> None:
        """No more work; processes end at once."""
        if not self._closed:
            self.close()
        for actor, _ in self._actors:
            _ray().kill(actor)

    def join(self) -> None:
        """Wait for the processes to end."""
        if not self._closed:
            raise ValueError("Pool is still running")
        _ray().wait(self._stopping, num_returns=len(self._stopping))
