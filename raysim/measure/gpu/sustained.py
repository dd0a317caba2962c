"""Products in a long run: what power and heat leave of the rate of a short one.

``flops``: FLOP/s of one slice of time after the other, ``clock`` and ``power`` read at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import cache

from raysim.measure.gpu.device import Device, dtype_of
from raysim.measure.session import Point, Unavailable

TABLE = "sustained"
COLUMNS = ("device", "threads", "dtype", "side", "quantity")

SIDE = 8192
SLICE_S = 0.25
RUN_S = 4.0
UNITS = {"flops_first": "FLOP/s", "flops_last": "FLOP/s", "clock": "MHz", "power": "W"}


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """One run for all quantities; nothing on a CPU."""
    if device.is_gpu and not quick:
        run = cache(lambda: _run(device))
        for quantity, unit in UNITS.items():
            parameters = {"dtype": "bf16", "side": SIDE, "quantity": quantity}
            yield device.point(parameters, _measure(run, quantity), unit=unit)


def _measure(
    run: Callable[[], list[dict[str, float]]], quantity: str
) -> Callable[[float], list[float]]:
    """Samples of the run's first slice, or of those in its second half."""

    def measure(allowed_s: float) -> list[float]:  # noqa: ARG001  (as long as heat takes)
        slices = run()
        if quantity == "flops_first":
            return [slices[0]["flops"]]
        key = "flops" if quantity == "flops_last" else quantity
        return [found[key] for found in slices[len(slices) // 2 :]]

    return measure


def _run(device: Device) -> list[dict[str, float]]:
    import torch

    a, b = (torch.randn(SIDE, SIDE, device=device.name, dtype=dtype_of("bf16")) for _ in range(2))
    out = a @ b
    torch.cuda.synchronize()
    time.sleep(RUN_S / 4)  # cool
    found = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < RUN_S:
        start, done = time.perf_counter(), 0
        while time.perf_counter() - start < SLICE_S:
            for _ in range(10):
                torch.mm(a, b, out=out)
            torch.cuda.synchronize()
            done += 10
        seconds = time.perf_counter() - start
        found.append({"flops": 2 * SIDE**3 * done / seconds} | _sensors())
    return found


def _sensors() -> dict[str, float]:
    import torch

    try:
        return {"clock": float(torch.cuda.clock_rate()), "power": torch.cuda.power_draw() / 1e3}
    except ModuleNotFoundError:
        raise Unavailable("pynvml is not installed") from None
