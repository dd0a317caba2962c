"""Weights in main memory that visit the GPU while their module runs: Accelerate's CPU offload.

Real counterpart: ``AlignDevicesHook`` of ``accelerate/hooks.py`` (1.15), which ``dispatch_model``
puts on every module with parameters of its own, where ``device_map`` says ``"cpu"``. Before the
module's forward it copies them from pageable memory, which the host waits for, after it they are
gone; nothing is copied ahead. Of a tied weight that another module has on a GPU nothing is copied.

Not modelled: the hooks' Python; what of the copies is at work beside kernels that came before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.rayapi.shapes.prediction import Forward
from raysim.tracing.storages import key_of

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps


class Fetched(NamedTuple):
    """Of one forward of a model."""

    size_bytes: int
    """Copied to the GPU, each time."""
    largest_bytes: int
    """Of one module's, which is there at the same time."""

    def beside(self, forward: Forward) -> Forward:
        """With the largest of them at its peak."""
        more = self.largest_bytes
        return replace(
            forward, allocated_bytes=forward.allocated_bytes + more,
            reserved_bytes=forward.reserved_bytes + more,
        )  # fmt: skip


def storages(steps: Steps) -> dict[int, None]:
    """Those in main memory."""
    found: dict[int, None] = steps.worker.globals.setdefault(storages, {})
    return found


def keep(steps: Steps, parts: Iterable[Any], resident: Iterable[Any]) -> None:
    """Parameters of these parts stay in main memory, but for those that a GPU has."""
    there = {key_of(p) for part in resident for p in part.parameters()}
    away = (key_of(p) for part in parts for p in part.parameters())
    storages(steps).update(dict.fromkeys(key for key in away if key not in there))


def of(steps: Steps, module: Any) -> Fetched:
    """What a forward of it copies."""
    kept = storages(steps)
    if not kept:
        return Fetched(0, 0)
    each = [
        sum(p.numel() * p.element_size() for p in m.parameters(recurse=False) if key_of(p) in kept)
        for m in module.modules()
    ]
    return Fetched(sum(each), max(each))
