"""``ray.util.queue``: a queue in an asyncio actor.

Real counterpart: ``python/ray/util/queue.py`` of ray 2.60.
"""

from __future__ import annotations

import queue as queue_module
from collections.abc import Iterable
from typing import Any

from raysim.rayapi import asyncio_loop


class Empty(queue_module.Empty):
    """There is nothing in it."""


class Full(queue_module.Full):
    """There is no room in it."""


def _ray() -> Any:
    from raysim.rayapi import api

    return api


class Queue:
    """First in, first out."""

    def __init__(self, maxsize: int = 0, actor_options: dict[str, Any] | None = None) -> None:
        self.maxsize = maxsize
        self.actor: Any = (
            _ray().remote(_QueueActor).options(**(actor_options or {})).remote(maxsize)
        )

    def __len__(self) -> int:
        return self.size()

    def size(self) -> int:
        """How many items are in it."""
        return int(_ray().get(self.actor.qsize.remote()))

    def qsize(self) -> int:
        """How many items are in it."""
        return self.size()

    def empty(self) -> bool:
        """Whether nothing is in it."""
        return bool(_ray().get(self.actor.empty.remote()))

    def full(self) -> bool:
        """Whether nothing more fits."""
        return bool(_ray().get(self.actor.full.remote()))

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Add an item, when there is room."""
        _check_timeout(block, timeout)
        if block:
            _ray().get(self.actor.put.remote(item, timeout))
            return
        try:
            _ray().get(self.actor.put_nowait.remote(item))
        except asyncio_loop.QueueFull:
            raise Full from None

    async def put_async(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """The same in a coroutine."""
        _check_timeout(block, timeout)
        if block:
            await self.actor.put.remote(item, timeout)
            return
        try:
            await self.actor.put_nowait.remote(item)
        except asyncio_loop.QueueFull:
            raise Full from None

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Take an item, when there is one."""
        _check_timeout(block, timeout)
        if block:
            return _ray().get(self.actor.get.remote(timeout))
        try:
            return _ray().get(self.actor.get_nowait.remote())
        except asyncio_loop.QueueEmpty:
            raise Empty from None

    async def get_async(self, block: bool = True, timeout: float | None = None) -> Any:
        """The same in a coroutine."""
        _check_timeout(block, timeout)
        if block:
            return await self.actor.get.remote(timeout)
        try:
            return await self.actor.get_nowait.remote()
        except asyncio_loop.QueueEmpty:
            raise Empty from None

    def put_nowait(self, item: Any) -> None:
        """``put`` without waiting."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """All of them or none."""
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        _ray().get(self.actor.put_nowait_batch.remote(items))

    def get_nowait(self) -> Any:
        """``get`` without waiting."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """So many or none."""
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        found: list[Any] = _ray().get(self.actor.get_nowait_batch.remote(num_items))
        return found

    def shutdown(self, force: bool = False, grace_period_s: int = 5) -> None:
        """End its actor."""
        ray, actor = _ray(), self.actor
        self.actor = None
        if not actor:
            return
        if not force:
            _, running = ray.wait([actor.__ray_terminate__.remote()], timeout=grace_period_s)
            if not running:
                return
        ray.kill(actor, no_restart=True)


def _check_timeout(block: bool, timeout: float | None) -> None:
    if block and timeout is not None and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")


class _QueueActor:
    def __init__(self, maxsize: int) -> None:
        self.maxsize = maxsize
        self.queue: Any = asyncio_loop.Queue(maxsize)

    def qsize(self) -> int:
        return int(self.queue.qsize())

    def empty(self) -> bool:
        return bool(self.queue.empty())

    def full(self) -> bool:
        return bool(self.queue.full())

    async def put(self, item: Any, timeout: float | None = None) -> None:
        try:
            await asyncio_loop.wait_for(self.queue.put(item), timeout)
        except TimeoutError:
            raise Full from None

    async def get(self, timeout: float | None = None) -> Any:
        try:
            return await asyncio_loop.wait_for(self.queue.get(), timeout)
        except TimeoutError:
            raise Empty from None

    def put_nowait(self, item: Any) -> None:
        self.queue.put_nowait(item)

    def put_nowait_batch(self, items: list[Any]) -> None:
        if self.maxsize > 0 and len(items) + self.qsize() > self.maxsize:
            raise Full(
                f"Cannot add {len(items)} items to queue of size {self.qsize()} and maxsize "
                f"{self.maxsize}."
            )
        for item in items:
            self.queue.put_nowait(item)

    def get_nowait(self) -> Any:
        return self.queue.get_nowait()

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        if num_items > self.qsize():
            raise Empty(f"Cannot get {num_items} items from queue of size {self.qsize()}.")
        return [self.queue.get_nowait() for _ in range(num_items)]


for _class in (Empty, Full, Queue, _QueueActor):
    _class.__module__ = "ray.util.queue"
