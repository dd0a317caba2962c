"""A step of torch's AdamW: fused, foreach and one tensor after the other."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point

TABLE = "optimizer"
COLUMNS = ("device", "threads", "optimizer", "implementation", "dtype", "tensors", "parameters")

IMPLEMENTATIONS: dict[str, Any] = {
    "fused": {"fused": True},
    "foreach": {"foreach": True},
    "loop": {"foreach": False, "fused": False},
}
GPU_SIZES = ((1, 10**6), (100, 10**8), (300, 10**9), (1, 10**9))
CPU_SIZES = ((1, 10**5), (20, 10**6), (50, 10**7), (1, 10**7))
"""Tensors, and parameters in all of them."""


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every implementation at every size; fp32 states, and bf16 ones."""
    sizes = GPU_SIZES if device.is_gpu else CPU_SIZES
    for (tensors, count), how, dtype in product(
        ((2, 1000),) if quick else sizes, IMPLEMENTATIONS, ("fp32", "bf16")
    ):
        yield _point(device, how, dtype, tensors, count)


def _point(device: Device, how: str, dtype: str, tensors: int, count: int) -> Point:
    def measure(allowed_s: float) -> list[float]:
        import torch

        weights = [
            torch.zeros(count // tensors, device=device.name, dtype=dtype_of(dtype))
            for _ in range(tensors)
        ]
        for weight in weights:
            weight.grad = torch.full_like(weight, 1e-3)
        adam = torch.optim.AdamW(weights, lr=1e-4, weight_decay=0.1, **IMPLEMENTATIONS[how])
        return device.times(adam.step, allowed_s)

    parameters = {
        "optimizer": "adamw", "implementation": how, "dtype": dtype,
        "tensors": tensors, "parameters": count,
    }  # fmt: skip
    return device.point(parameters, measure)
