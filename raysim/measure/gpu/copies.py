"""Copies between host and GPU (h2d, d2h) and within the GPU (d2d); on a CPU, of the host (h2h)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from raysim.measure.gpu.device import Device
from raysim.measure.session import Point
from raysim.units import GIB, KIB, MIB

TABLE = "copies"
COLUMNS = ("device", "threads", "kind", "memory", "bytes")

SIZES = (4 * KIB, 64 * KIB, MIB, 16 * MIB, 256 * MIB, GIB)


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every kind at every size; pinned and pageable host memory where the host has a part."""
    kinds = [("h2h", "pageable")]
    if device.is_gpu:
        kinds = [*product(("h2d", "d2h"), ("pinned", "pageable")), ("d2d", "device")]
    sizes = SIZES if device.is_gpu else SIZES[:-1]
    for size_bytes, (kind, memory) in product((4 * KIB,) if quick else sizes, kinds):
        yield _point(device, kind, memory, size_bytes)


def _point(device: Device, kind: str, memory: str, size_bytes: int) -> Point:
    def measure(allowed_s: float) -> list[float]:
        import torch

        def buffer(side: str) -> torch.Tensor:
            if side == "d":
                return torch.zeros(size_bytes, dtype=torch.uint8, device=device.name)
            made = torch.zeros(size_bytes, dtype=torch.uint8)
            return made.pin_memory() if memory == "pinned" else made

        source, target = buffer(kind[0]), buffer(kind[2])
        pinned = memory == "pinned"
        return device.times(lambda: target.copy_(source, non_blocking=pinned), allowed_s)

    parameters = {"kind": kind, "memory": memory, "bytes": size_bytes}
    return device.point(parameters, measure)
