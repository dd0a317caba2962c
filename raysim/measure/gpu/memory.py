"""What memory really costs on a GPU: the caching allocator's rounding and segments, the context.

``allocated``: what ``torch.cuda.memory_allocated`` grows by for a request; ``reserved``: what is
taken from the driver for it when the cache is empty. ``context``: the driver's memory in use once a
process has a CUDA context; ``context_and_kernels``: after a matrix product, an attention core and
their libraries were loaded, less what torch reserved.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from raysim.measure.gpu.device import Device
from raysim.measure.session import Point, Unavailable
from raysim.units import KIB, MIB

TABLE = "memory"
COLUMNS = ("device", "threads", "quantity", "requested")

REQUESTS = (
    1, 512, 513, 100_000, MIB - 1, MIB, MIB + 1, 2 * MIB + 1, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1,
    11 * MIB, 20 * MIB + 1, 21 * MIB + 512 * KIB, 100 * MIB + 1, 1000 * MIB + 1,
)  # fmt: skip
"""Bytes, around the allocator's limits: blocks of 512 B, segments of 2 and 20 MiB, own ones."""
PROBE = """
import torch
from torch.nn.functional import scaled_dot_product_attention
def used():
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()
torch.cuda.init()
torch.cuda.synchronize()
context = used()
x = torch.ones(1, 1, 128, 128, device="cuda", dtype=torch.float16)
(x @ x).sum()
scaled_dot_product_attention(x, x, x)
torch.cuda.synchronize()
print(context, used())
"""
"""In a process of its own; what others hold on the GPU is taken off by whoever reads this."""


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Nothing on a CPU, whose allocator neither rounds nor keeps."""
    if not device.is_gpu:
        return
    for quantity in ("context", "context_and_kernels"):
        yield _context(device, quantity)
    for requested in REQUESTS[:3] if quick else REQUESTS:
        for quantity in ("allocated", "reserved"):
            yield _request(device, quantity, requested)


def _request(device: Device, quantity: str, requested: int) -> Point:
    def measure(allowed_s: float) -> list[float]:  # noqa: ARG001  (microseconds)
        import torch

        held = getattr(torch.cuda, f"memory_{quantity}")
        torch.cuda.empty_cache()
        before = held()
        block = torch.empty(requested, dtype=torch.uint8, device=device.name)
        grown = held() - before
        del block
        return [float(grown)]

    parameters = {"quantity": quantity, "requested": requested}
    return device.point(parameters, measure, unit="bytes")


def _context(device: Device, quantity: str) -> Point:
    def measure(allowed_s: float) -> list[float]:  # noqa: ARG001  (seconds, once)
        import torch

        free, total = torch.cuda.mem_get_info()
        others = total - free  # this process's own context, and whoever else is there
        done = subprocess.run(  # noqa: S603  (our own text)
            [sys.executable, "-c", PROBE], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise Unavailable(done.stderr.strip().rpartition("\n")[2])
        context, loaded = map(int, done.stdout.split())
        return [float((context if quantity == "context" else loaded) - others)]

    parameters = {"quantity": quantity, "requested": 0}
    return device.point(parameters, measure, unit="bytes")
