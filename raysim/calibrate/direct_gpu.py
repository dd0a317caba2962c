"""Constants of a GPU and its host that tables of ``raysim measure gpu`` say.

How long a launch takes, the shortest kernel, the bandwidth of streaming kernels, that of PCIe.
What only whole steps show, how far hot GPUs and cold caches stay behind such loops, is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from raysim.calibrate.rows import DECILES_APART
from raysim.hardware.specs import GpuSpec
from raysim.measure.table import MeasuredRow, read_rows
from raysim.perf.host import HostCosts
from raysim.perf.profile import Constant, known, unit_of
from raysim.perf.sustained import sustained

BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
FAR_BYTES = 1 << 28
"""Of elementwise operators: beyond every cache. Of copies: their fixed time is nothing."""


def gpu_constants(folder: Path, gpu: GpuSpec, host_speed: float) -> dict[str, Constant]:
    """What the folder's tables say, by name; what they do not say is left out.

    ``host_speed`` is that of the loops in them, over raysim's reference.

    Raises
    ------
    CalibrationError
        A table cannot be read.
    """
    share, origin = sustained(gpu, 1)
    found = {"sustained_share": Constant(value=share, unit="1", source=origin.source)}
    for name, source, values in _said(folder, gpu, host_speed):
        if values and median(values) > 0:
            ordered = sorted(values)
            spread = math.log(ordered[-1] / ordered[0]) / DECILES_APART if ordered[0] > 0 else 0.0
            found[name] = Constant(
                value=float(f"{median(values):.3g}"), unit=unit_of(name),
                prior=known("training")[name], error=round(spread, 3), source=source,
                rows=(f"{len(values)} rows",),
            )  # fmt: skip
    return found


def _said(folder: Path, gpu: GpuSpec, speed: float) -> Iterator[tuple[str, str, list[float]]]:
    adds = _rows(folder, "launch", quantity="dispatch", op="add_")
    where = f"launch.csv: add_, less its operator, times the host_speed of {speed:g} of such loops"
    yield "launch_s", where, [row.value * speed - HostCosts().operator_s for row in adds]
    kernels = _rows(folder, "launch", quantity="kernel", op="add_")
    yield "kernel_floor_s", "launch.csv: kernels of one element, queued", [r.value for r in kernels]
    rates = [
        _elementwise_bytes(row) / row.value / gpu.memory_bytes_per_s
        for row in _rows(folder, "elementwise")
        if row.parameters["op"] in ("copy", "scale", "add") and _elementwise_bytes(row) >= FAR_BYTES
    ]
    yield "memory_share", "elementwise.csv: copy, scale, add beyond the caches", rates
    copies = [
        float(row.parameters["bytes"]) / row.value
        for kind in ("h2d", "d2h")
        for row in _rows(folder, "copies", kind=kind, memory="pinned")
        if float(row.parameters["bytes"]) >= FAR_BYTES
    ]
    yield "pcie_bytes_per_s", "copies.csv: pinned memory, from 256 MiB on", copies


def _elementwise_bytes(row: MeasuredRow) -> float:
    said = row.parameters
    return BYTES[str(said["dtype"])] * float(said["passes"]) * float(said["elements"])


def _rows(folder: Path, what: str, **wanted: str) -> list[MeasuredRow]:
    """Of a table, if it is there: the GPU's rows that say all this."""
    path = folder / f"{what}.csv"
    return [
        row for row in (read_rows(path) if path.exists() else ())
        if row.parameters.get("device") == "cuda"
        and all(row.parameters.get(key) == value for key, value in wanted.items())
    ]  # fmt: skip
