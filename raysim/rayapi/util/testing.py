"""``ray._common.test_utils`` and what ``ray._private.test_utils`` shares with scripts.

Real counterparts: those of ray 2.60, which Ray's documentation and release scripts use: signals,
semaphores, waiting for a condition, a JSON file of results. The actors are ordinary ones.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns, sleep_s
from raysim.rayapi.unsupported import NotEmulatedError


class Signal:
    """Tasks wait until somebody has sent it."""

    def __init__(self) -> None:
        self.sent = False
        self._waiting: list[Any] = []

    async def send(self, clear: bool = False) -> None:
        """All who wait go on; ``clear``: who comes later waits again."""
        self.sent = not clear
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.set_result(None)

    async def wait(self, should_wait: bool = True) -> None:
        """Until it is sent."""
        if should_wait and not self.sent:
            self._waiting.append(asyncio_loop.new_future())
            await self._waiting[-1]

    async def cur_num_waiters(self) -> int:
        """How many wait."""
        return len(self._waiting)


class Counting:
    """A semaphore for tasks."""

    def __init__(self, value: int = 1) -> None:
        self._free = value
        self._waiting: list[Any] = []

    async def acquire(self) -> None:
        """Wait for it."""
        if self._free:
            self._free -= 1
            return
        self._waiting.append(asyncio_loop.new_future())
        await self._waiting[-1]

    async def release(self) -> None:
        """Give it back, to who has waited longest."""
        if self._waiting:
            self._waiting.pop(0).set_result(None)
        else:
            self._free += 1

    async def locked(self) -> bool:
        """Whether nobody would get it."""
        return not self._free


def wait_for_condition(
    condition_predictor: Callable[..., bool],
    timeout: float = 10,
    retry_interval_ms: float = 100,
    raise_exceptions: bool = False,
    **kwargs: Any,
) -> None:
    """Ask until it is true.

    Raises
    ------
    RuntimeError
        It was not within ``timeout`` seconds.
    """
    fiber, last = this_fiber(), None
    start_ns = fiber_ns(fiber)
    while fiber_ns(fiber) - start_ns <= timeout * 1e9:
        try:
            if condition_predictor(**kwargs):
                return
        except Exception:
            if raise_exceptions:
                raise
            last = traceback.format_exc()
        sleep_s(fiber, retry_interval_ms / 1000.0)
    said = "The condition wasn't met before the timeout expired."
    raise RuntimeError(said if last is None else f"{said} Last exception: {last}")


def no_resource_leaks_excluding_node_resources() -> bool:
    """Whether nobody holds anything."""
    from raysim.rayapi import api

    everything, free = api.cluster_resources(), api.available_resources()
    return all(free.get(name) == value for name, value in everything.items() if "node" not in name)


def safe_write_to_results_json(
    result: dict[str, Any],
    default_file_name: str = "/tmp/release_test_output.json",  # noqa: S108  (Ray's own)
    env_var: str = "TEST_OUTPUT_JSON",
) -> None:
    """A file of results, where the variable says."""
    Path(os.environ.get(env_var, default_file_name)).write_text(
        json.dumps(result), encoding="utf-8"
    )


_NAMES = (
    "wait_for_condition", "no_resource_leaks_excluding_node_resources",
    "safe_write_to_results_json",
)  # fmt: skip
_INSTEAD = "SignalActor, Semaphore, wait_for_condition, safe_write_to_results_json"


def test_utils() -> dict[str, ModuleType]:
    """By Ray's names."""
    return {
        name: _module(name)
        for name in ("ray._common", "ray._common.test_utils", "ray._private.test_utils")
    }  # fmt: skip


def _module(name: str) -> ModuleType:
    module = ModuleType(name)

    def ask(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        if name.endswith("test_utils") and attribute in _NAMES:
            return globals()[attribute]
        if name.endswith("test_utils") and attribute in ("SignalActor", "Semaphore"):
            from raysim.rayapi import api

            return api.remote(num_cpus=0)(Signal if attribute == "SignalActor" else Counting)
        instead = _INSTEAD if name.endswith("test_utils") else "the public functions of ray"
        raise NotEmulatedError(f"{name}.{attribute}", instead)

    vars(module).update(__path__=[], __getattr__=ask)
    return module
