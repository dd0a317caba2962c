"""LoRA adapters of an ``LLMServer``: named in requests, fetched from their bucket when asked for.

Real counterpart: ``llm/_internal/serve/utils/lora_serve_utils.py`` and
``common/utils/lora_utils.py`` (ray 2.60). A replica keeps ``max_num_adapters_per_replica`` of them
(``serve.multiplexed``); whatever it has fetched stays on its disk.

Not modelled: what the bucket holds: every name is there, as large as an adapter of
``max_lora_rank`` on all products.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from raysim.hardware import catalog
from raysim.hardware.storage import ObjectStorage
from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.llm.configs import SERVICES, LoraConfig
from raysim.rayapi.serve.multiplexing import multiplexed

CONFIG_BYTES = 1024
"""Of ``adapter_config.json``, read first."""
Loader = Callable[[str], Awaitable[None]]


def base_of(model_id: str) -> str:
    """``base`` of ``base:suffix:id``."""
    return model_id.partition(":")[0]


def loader_of(config: LoraConfig, size_bytes: float) -> Loader:
    """Has an adapter on the replica's disk when it returns."""
    disk = Disk(config.dynamic_lora_loading_path, size_bytes)

    async def load(model_id: str) -> None:
        await disk.has(model_id)

    most = config.max_num_adapters_per_replica
    found: Loader = multiplexed(max_num_models_per_replica=most)(load)
    return found


class Disk:
    """Adapters that one process has fetched, one at a time.

    Parameters
    ----------
    path
        The bucket's; None: all are there.
    size_bytes
        Of each.
    """

    def __init__(self, path: str | None, size_bytes: float) -> None:
        self._path, self._size_bytes = path, size_bytes
        self._there: set[str] = set()
        self._free = asyncio_loop.Semaphore(1)

    async def has(self, name: str) -> None:
        """Returns when it is there."""
        if self._path is None or name in self._there:
            return
        async with self._free:
            if name not in self._there:
                service = SERVICES[urlsplit(self._path).scheme]
                await _fetched(service, CONFIG_BYTES)
                await _fetched(service, self._size_bytes)
                self._there.add(name)


async def _fetched(service: str, size_bytes: float) -> None:
    fiber = this_fiber()
    env = fiber.process.session.env
    known: dict[str, ObjectStorage] = fiber.process.session.libraries.setdefault("adapters", {})
    if service not in known:
        spec = catalog.object_storage(service)
        known[service] = ObjectStorage(env.sim, spec, env.network, env.topology)
    fiber.settle()
    there: Any = asyncio_loop.new_future()
    known[service].get(
        ("host", this_core(fiber).me.node_id), size_bytes,
        lambda _: asyncio_loop.set_result(there, None),
        failed=lambda _one, _cause: None,  # the replica's node is gone
    )  # fmt: skip
    await there
