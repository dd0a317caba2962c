"""``ray.util.ActorPool``: work shared out among actors.

Real counterpart: ``python/ray/util/actor_pool.py`` of ray 2.60.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from raysim.rayapi.exceptions import ActorDiedError

Work = Callable[[Any, Any], Any]


def _ray() -> Any:
    from raysim.rayapi import api

    return api


class ActorPool:
    """Some actors; one piece of work at a time on each."""

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle: list[Any] = list(actors)
        self._running: dict[Any, tuple[int, Any]] = {}
        self._futures: dict[int, Any] = {}
        self._submitted = 0
        self._returned = 0
        self._waiting: deque[tuple[Work, Any]] = deque()

    def map(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Results in order."""
        return self._map(fn, values, self.get_next)

    def map_unordered(self, fn: Work, values: Iterable[Any]) -> Iterator[Any]:
        """Results as they come."""
        return self._map(fn, values, self.get_next_unordered)

    def _map(self, fn: Work, values: Iterable[Any], take: Callable[..., Any]) -> Iterator[Any]:
        while self.has_next():
            try:
                take(timeout=0, ignore_if_timedout=True)
            except TimeoutError:
                continue
        for value in values:
            self.submit(fn, value)

        def results() -> Iterator[Any]:
            while self.has_next():
                yield take()

        return results()

    def submit(self, fn: Work, value: Any) -> None:
        """Do it as soon as an actor is free."""
        if not self._idle:
            self._waiting.append((fn, value))
            return
        actor = self._idle.pop()
        future = fn(actor, value)
        self._running[_key(future)] = (self._submitted, actor)
        self._futures[self._submitted] = future
        self._submitted += 1

    def has_next(self) -> bool:
        """Whether a result is still to come."""
        return bool(self._running)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The next result in order."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        if self._returned >= self._submitted:
            raise ValueError("It is not allowed to call get_next() after get_next_unordered().")
        future = self._futures[self._returned]
        late = False
        if timeout is not None:
            ready, _ = _ray().wait([future], timeout=timeout)
            late = not ready
            if late and not ignore_if_timedout:
                raise TimeoutError("Timed out waiting for result")
        del self._futures[self._returned]
        self._returned += 1
        _, actor = self._running.pop(_key(future))
        return self._result(future, actor, late)

    def get_next_unordered(
        self, timeout: float | None = None, ignore_if_timedout: bool = False
    ) -> Any:
        """Any result."""
        if not self.has_next():
            raise StopIteration("No more results to get")
        waiting = list(self._running)
        ready, _ = _ray().wait(waiting, num_returns=1, timeout=timeout)
        if not ready and not ignore_if_timedout:
            raise TimeoutError("Timed out waiting for result")
        future = ready[0] if ready else waiting[0]
        index, actor = self._running.pop(future)
        del self._futures[index]
        self._returned = max(self._returned, index + 1)
        return self._result(future, actor, not ready)

    def _result(self, future: Any, actor: Any, late: bool) -> Any:
        if late:
            self._free(actor)
            raise TimeoutError(f"Timed out waiting for result. The task {future} has been ignored.")
        alive = True
        try:
            return _ray().get(future)
        except ActorDiedError:
            alive = False
            raise
        finally:
            self._free(actor, alive=alive)

    def _free(self, actor: Any, *, alive: bool = True) -> None:
        if alive:
            self._idle.append(actor)
        if self._waiting and self._idle:
            self.submit(*self._waiting.popleft())

    def has_free(self) -> bool:
        """Whether an actor has nothing to do."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any:
        """Take an idle actor out of the pool; None if there is none."""
        return self._idle.pop() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Put an actor into the pool."""
        if actor in self._idle or actor in [busy for _, busy in self._running.values()]:
            raise ValueError("Actor already belongs to current ActorPool")
        self._free(actor)


def _key(future: Any) -> Any:
    return tuple(future) if isinstance(future, list) else future


ActorPool.__module__ = "ray.util.actor_pool"
