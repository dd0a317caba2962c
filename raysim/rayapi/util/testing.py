"""``ray._common.test_utils`` and what ``ray._private.test_utils`` shares with scripts.

Real counterparts: those of ray 2.60, which Ray's documentation and its release scripts use: signals,
semaphores, waiting for a condition, a JSON file of results. The actors are ordinary ones.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from raysim.rayapi.unsupported import NotEmulatedError


class Signal:
    """Tasks wait until somebody has sent it."""

    def __init__(self) -> None:
        self.ready_event = asyncio.Event()
        self.num_waiters = 0

    async def send(self, clear: bool = False) -> None:
        """All who wait go on; ``clear``: who comes later waits again."""
        self.ready_event.set()
        if clear:
            self.ready_event.clear()

    async def wait(self, should_wait: bool = True) -> None:
        """Until it is sent."""
        if should_wait:
            self.num_waiters += 1
            await self.ready_event.wait()
            self.num_waiters -= 1

    async def cur_num_waiters(self) -> int:
        """How many wait."""
        return self.num_waiters


class Counting:
    """A semaphore for tasks."""

    def __init__(self, value: int = 1) -> None:
        self._sema = asyncio.Semaphore(value=value)

    async def acquire(self) -> None:
        """Wait for it."""
        await self._sema.acquire()

    async def release(self) -> None:
        """Give it back."""
        self._sema.release()

    async def locked(self) -> bool:
        """Whether nobody would get it."""
        return self._sema.locked()


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
    start_s, last = time.monotonic(), None
    while time.monotonic() - start_s <= timeout:
        try:
            if condition_predictor(**kwargs):
                return
        except Exception:
            if raise_exceptions:
                raise
            last = traceback.format_exc()
        time.sleep(retry_interval_ms / 1000.0)
    said = "The condition wasn't met before the timeout expired."
    raise RuntimeError(said if last is None else f"{said} Last exception: {last}")


def no_resource_leaks_excluding_node_resources() -> bool:
    """Whether nobody holds anything."""
    from raysim.rayapi import api

    everything, free = api.cluster_resources(), api.available_resources()
    return all(
        free.get(name) == value for name, value in everything.items() if "node" not in name
    )


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
        for name in (
            "ray._common", "ray._common.test_utils", "ray._private", "ray._private.test_utils"
        )
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
