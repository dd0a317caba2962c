"""Where scripts of one process meet: events and queues.

Real counterpart: ``asyncio.Event``, ``asyncio.Queue`` and their like in ``threading``. They belong
to one process; what sets them from outside it (an engine, a flow) goes through ``process.after``,
which a dead process never hears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raysim.raycore.scripts.script import WAITS, Ask, Driver


class Event:
    """``asyncio.Event`` with a value, set once: who waits is resumed in the order they came."""

    __slots__ = ("_waiting", "is_set", "value")

    def __init__(self) -> None:
        self.is_set = False
        self.value: Any = None
        self._waiting: list[Callable[[Any], object]] = []

    def set(self, value: Any = None) -> None:
        """It has happened; later calls change nothing."""
        if self.is_set:
            return
        self.is_set, self.value = True, value
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume(value)

    def then(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(value)`` once it has happened, at once if it has."""
        if self.is_set:
            fn(self.value)
        else:
            self._waiting.append(fn)


def wait_for(event: Event, timeout_ns: int | None = None) -> Ask:
    """Wait for an event: its value, or ``TIMED_OUT``."""

    def begin(d: Driver) -> Any:
        d.process.after(d.take_lead(), _Wait(d, event, timeout_ns).start)
        return WAITS

    return Ask(begin)


TIMED_OUT = object()
"""The answer of a wait that took too long."""


class _Wait:
    __slots__ = ("driver", "event", "over", "timeout_ns")

    def __init__(self, driver: Driver, event: Event, timeout_ns: int | None) -> None:
        self.driver = driver
        self.event = event
        self.timeout_ns = timeout_ns
        self.over = False

    def start(self, _: object) -> None:
        if self.timeout_ns is not None and not self.event.is_set:
            self.driver.process.after(self.timeout_ns, self.end, TIMED_OUT)
        self.event.then(self.end)

    def end(self, value: Any) -> None:
        if not self.over:
            self.over = True
            self.driver.resume(value)


class Queue:
    """``asyncio.Queue``: first in, first out; ``maxsize`` 0 for no bound."""

    __slots__ = ("_getters", "_items", "_putters", "maxsize")

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self._items: deque[Any] = deque()
        self._getters: deque[Callable[[Any], object]] = deque()
        self._putters: deque[tuple[Any, Callable[[Any], object]]] = deque()

    def __len__(self) -> int:
        """Items that wait to be taken."""
        return len(self._items)

    def put_nowait(self, item: Any) -> None:
        """Put one from plain code, over the bound if need be."""
        if self._getters:
            self._getters.popleft()(item)
        else:
            self._items.append(item)

    def get_nowait(self) -> Any:
        """Take one in plain code; IndexError of none."""
        item = self._items.popleft()
        if self._putters:
            waiting, putter = self._putters.popleft()
            self._items.append(waiting)
            putter(None)
        return item

    def put(self, item: Any) -> Ask:
        """Wait for room and put one."""

        def begin(d: Driver) -> Any:
            d.process.after(d.take_lead(), self._put, (item, d.resume))
            return WAITS

        return Ask(begin)

    def get(self) -> Ask:
        """Wait for an item and take it."""

        def begin(d: Driver) -> Any:
            d.process.after(d.take_lead(), self._get, d.resume)
            return WAITS

        return Ask(begin)

    def _put(self, put: tuple[Any, Callable[[Any], object]]) -> None:
        item, resume = put
        if self.maxsize and len(self._items) >= self.maxsize:
            self._putters.append((item, resume))
            return
        self.put_nowait(item)
        resume(None)

    def _get(self, resume: Callable[[Any], object]) -> None:
        if self._items:
            resume(self.get_nowait())
        else:
            self._getters.append(resume)
