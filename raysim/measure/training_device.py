"""What a GPU says of a case's steps: time without waits in between, memory, kernels, clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

FREE_STEPS = 6
"""Steps timed with the host running ahead, as in training, unless a case has ``free_steps``."""
LEAST_S = 1e-6
"""Operators that hold the device for less are left out of the list."""


def on_device(step: Callable[[], Any], *, profile: bool, steps: int = FREE_STEPS) -> dict[str, Any]:
    """Peaks, steps that wait for nothing but the end, and one step's operators.

    Parameters
    ----------
    step
        One optimizer step, warmed up.
    profile
        Whether to list operators; takes seconds.
    steps
        How many to time; power and heat show in long runs.

    Returns
    -------
    dict
        ``peak``: bytes ``allocated``, ``reserved`` (of torch's caching allocator), ``driver`` (what
        the GPU has in use beside them). ``free``: seconds of each step, on the device's clock, and
        ``host``: until the last call had been queued. ``clock_mhz``, ``power_w``: at the end.
        ``operators``: name, shapes, calls and seconds on the device of the last step.
    """
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    found = _free(step, steps)
    free, total = torch.cuda.mem_get_info()
    reserved = torch.cuda.memory_reserved()
    found["peak"] = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "driver": total - free - reserved,
    }
    if profile:
        found["operators"] = operators(step)
    return found


def _free(step: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Seconds between events at the steps' ends, and how long the host took to queue each."""
    new_event: Any = torch.cuda.Event  # untyped
    marks = [new_event(enable_timing=True) for _ in range(steps + 1)]
    queued = []
    marks[0].record()
    for mark in marks[1:]:
        start = time.perf_counter()
        step()
        queued.append(time.perf_counter() - start)
        mark.record()
    sensors = {"clock_mhz": sensor("clock_rate"), "power_w": sensor("power_draw")}
    marks[-1].synchronize()
    seconds = [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]
    return {"free": seconds, "host": queued, **sensors}


def sensor(name: str) -> float | None:
    """A reading of the driver's, power in watts; None where pynvml is not installed."""
    try:
        found = float(getattr(torch.cuda, name)())
    except (ModuleNotFoundError, RuntimeError):
        return None
    return found / 1e3 if name == "power_draw" else found


def operators(step: Callable[[], Any]) -> list[list[Any]]:
    """ATen operators and compiled kernels of one step: name, shapes, calls, own device seconds."""
    from torch.profiler import ProfilerActivity, profile

    kinds = [ProfilerActivity.CPU]
    kinds += [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=kinds, record_shapes=True) as seen:
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return listed(seen)


def listed(seen: Any) -> list[list[Any]]:
    """Operators of a profile, the longest first; as :func:`operators`."""
    found = []
    for row in seen.key_averages(group_by_input_shape=True):
        device_s = row.self_device_time_total / 1e6
        if device_s >= LEAST_S and not row.key.startswith(("cuda", "ProfilerStep")):
            found.append([row.key, str(row.input_shapes), row.count, device_s])
    return sorted(found, key=lambda row: -row[-1])
