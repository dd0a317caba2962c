"""``vllm.utils``: addresses, and what scripts of this kind call beside engines."""

from __future__ import annotations

from itertools import count
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.ranks.gpu_use import gpu_use
from raysim.rayapi.shapes.here import worker_here

FIRST_PORT = 40_000


def get_ip() -> str:
    """Of the node."""
    return this_fiber().process.ip


def get_open_port() -> int:
    """Another each time."""
    ports = this_fiber().process.session.libraries.setdefault("vllm ports", count(FIRST_PORT))
    return int(next(ports))


def configure_as_vllm_process() -> None:
    """Environment variables of NCCL's, which change nothing here."""


class GiB_bytes(int):  # noqa: N801  (vLLM's own name)
    """Bytes of a GiB."""

    def __new__(cls) -> GiB_bytes:
        """One of them."""
        return super().__new__(cls, 2**30)


def memory_free() -> tuple[int, int]:
    """Bytes of this process's first GPU: free, and all."""
    worker: Any = worker_here()
    use, place = gpu_use(worker.run.session), worker.places[0]
    total = use.capacity_bytes(place)
    return int(total - use.held_bytes(place)), int(total)
