"""Memory that convolutions take from torch's allocator beside their results: cuDNN's workspaces.

``workspace.csv``, bytes: ``peak`` is the most that one call had allocated at once beyond what lay
there before it and its results; with ``benchmark`` cuDNN has tried its algorithms first
(``torch.backends.cudnn.benchmark``), and ``tried`` is the most that the trying took.

A thread remembers which plan it chose for a convolution, however it chose (``Conv_v8.cpp``,
``benchmark_cache``): so each point has a thread of its own, or nothing would be tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product

from raysim.measure.gpu import convolution
from raysim.measure.gpu.device import Device
from raysim.measure.session import Point

TABLE = "workspace"
COLUMNS = (*convolution.COLUMNS, "benchmark", "quantity")


def points(device: Device, *, quick: bool) -> Iterator[Point]:
    """Every layer of ``convolution.csv``, both ways; a CPU has no workspaces."""
    if not device.is_gpu:
        return
    layers = convolution.QUICK if quick else [*convolution.DENSE, *convolution.OTHERS]
    kinds = product((False, True), layers, ("bf16", "tf32"), ("first", "last"))
    for benchmark, layer, dtype, layout in kinds:
        if layout == "last" and (layer.dims != 2 or dtype != "bf16"):
            continue
        quantities = ("tried", "peak") if benchmark else ("peak",)
        for way, quantity in product(("forward", "backward"), quantities):
            yield _point(device, dtype, layout, way, layer, benchmark, quantity)


def _point(
    device: Device, dtype: str, layout: str, way: str, layer: convolution.Convolution,
    benchmark: bool, quantity: str,
) -> Point:  # fmt: skip
    def measure(_allowed_s: float) -> list[float]:
        import torch

        work = convolution.work(device, dtype, layout, way, layer)
        torch.backends.cudnn.benchmark = benchmark
        try:
            with ThreadPoolExecutor(1) as fresh:
                taken = list(fresh.map(_taken, (work, work)))
        finally:
            torch.backends.cudnn.benchmark = False
        return [taken[quantity == "peak"]]

    parameters = {
        "dtype": dtype, "layout": layout, "way": way, **layer._asdict(),
        "benchmark": int(benchmark), "quantity": quantity,
    }  # fmt: skip
    return device.point(parameters, measure, unit="bytes")


def _taken(work: convolution.Work) -> float:
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    results = work()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    del results
    return float(torch.cuda.max_memory_allocated() - before - kept)
