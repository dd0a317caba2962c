"""Constants of a rank on the CPU that tables of ``raysim measure gpu | collectives`` say.

The tables have as many threads as the host has cores; a rank is one thread while every core has
one, so a rate is a table's over its threads. All are priors of a fit: a step's shapes, caches and
Python are not a micro-benchmark's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median

from raysim.calibrate.rows import DECILES_APART
from raysim.measure.table import MeasuredRow, read_rows
from raysim.perf.cpu_rank import MMAP_THRESHOLD_MAX_BYTES, packed_bytes
from raysim.perf.profile import Constant, unit_of

IN_A_STEP = 0.5
"""What stays open of every rate, as a share: in a step caches are cold, memory is new, and ranks
wait for each other."""
LARGE_SIDE = 256
"""Of products: below it what a call costs shows."""
FAR_ELEMENTS = 1 << 24
"""Of elementwise operators: beyond the caches."""
MANY_TENSORS = 50
ADAM_PARAMETERS = 10_000_000
"""Of an optimizer: tensors that fit into a core's cache each, or one that does not."""
ADAM_BYTES = 80.0
"""Per element and step of the loop over parameters (``perf.optimizer``)."""
LARGE_BYTES = 1 << 22
SMALL_BYTES = 1 << 14
"""Of collectives: bytes rule, or steps do."""


def cpu_constants(folder: Path) -> dict[str, Constant]:
    """What the folder's tables say, by name; what they do not say is left out.

    ``error`` is the spread over the rows used and ``IN_A_STEP``, as a share.
    """
    found: dict[str, Constant] = {}
    for name, source, values in _said(folder):
        if values:
            ordered = sorted(values)
            spread = math.log(ordered[-1] / ordered[0]) / DECILES_APART if len(values) > 1 else 0.0
            found[name] = Constant(
                value=float(f"{median(values):.3g}"), unit=unit_of(name),
                error=round(math.hypot(spread, IN_A_STEP), 3),
                source=source, rows=(f"{len(values)} rows",),
            )  # fmt: skip
    return found


def _said(folder: Path) -> Iterator[tuple[str, str, list[float]]]:
    streams = [
        4.0 * float(r.parameters["passes"]) * float(r.parameters["elements"]) / _alone(r)
        for r in _rows(folder, "elementwise", dtype="fp32")
        if r.parameters["op"] in ("copy", "scale", "add")
        and int(r.parameters["elements"]) >= FAR_ELEMENTS
    ]
    where = "elementwise.csv: copy, scale, add beyond the caches, per thread"
    yield "memory_bytes_per_s", where, streams
    stream = median(streams) if streams else math.inf
    rates = [_product(row, stream) for row in _rows(folder, "gemm", dtype="fp32")]
    where = f"gemm.csv: fp32, sides of {LARGE_SIDE} and more, less the packing, per thread"
    yield "product_flops_per_s", where, [rate for rate in rates if rate]
    loop = _rows(folder, "optimizer", dtype="fp32", implementation="loop")
    for name, which in (("", MANY_TENSORS), ("far_", 1)):
        yield (
            f"optimizer_{name}bytes_per_s",
            f"optimizer.csv: AdamW's loop, {which} tensors of 10 M parameters, per thread",
            [
                ADAM_BYTES * float(r.parameters["parameters"]) / _alone(r)
                for r in loop
                if r.parameters["tensors"] == str(which)
                and int(r.parameters["parameters"]) == ADAM_PARAMETERS
            ],
        )  # fmt: skip
    dispatch = _rows(folder, "launch", quantity="dispatch", op="add_")
    yield "dispatch_s", "launch.csv: add_", [r.value for r in dispatch]
    yield from _gloo(folder)


def _gloo(folder: Path) -> Iterator[tuple[str, str, list[float]]]:
    """Two ranks: an all-reduce is two steps, and sends and receives the buffer once each."""
    rows = _rows(folder, "collectives", backend="gloo", world="2", quantity="time")
    time_s = {(r.parameters["op"], int(r.parameters["bytes"])): r.value for r in rows}
    reduced = {size: s for (op, size), s in time_s.items() if op == "all_reduce"}
    yield (
        "gloo_latency_s", "collectives.csv: all-reduce of 16 KiB, half",
        [s / 2 for size, s in reduced.items() if size == SMALL_BYTES],
    )  # fmt: skip
    large = {size: s for size, s in reduced.items() if size >= LARGE_BYTES}
    yield (
        "gloo_bytes_per_s", "collectives.csv: all-reduce from 4 MiB on, sent plus received",
        [2.0 * size / s for size, s in large.items()],
    )  # fmt: skip
    beyond = [
        (size, time_s.get((op, size), 0.0) - share * s)
        for op, share in (("all_gather", 0.5), ("reduce_scatter", 1.0))
        for size, s in large.items()
    ]
    for name, large_ones in (("staging", False), ("fresh", True)):
        yield (
            f"gloo_{name}_bytes_per_s",
            "collectives.csv: all-gather and reduce-scatter beyond their rings, "
            + ("above 32 MiB" if large_ones else "4 to 32 MiB"),
            [
                size / s for size, s in beyond
                if s > 0 and (size > MMAP_THRESHOLD_MAX_BYTES) == large_ones
            ],
        )  # fmt: skip


def _rows(folder: Path, what: str, **wanted: str) -> list[MeasuredRow]:
    path = folder / f"{what}.csv"
    found: Iterable[MeasuredRow] = read_rows(path) if path.exists() else ()
    return [
        row for row in found
        if all(row.parameters.get(key) == value for key, value in wanted.items())
        and row.parameters.get("device", "cpu") == "cpu"
    ]  # fmt: skip


def _alone(row: MeasuredRow) -> float:
    """Seconds that one of its threads would take."""
    return row.value * float(row.parameters["threads"])


def _product(row: MeasuredRow, bytes_per_s: float) -> float:
    """Operations per second of a thread, beside the packing; 0 of one that says nothing of it."""
    m, n, k = (int(row.parameters[side]) for side in "mnk")
    seconds = _alone(row) - packed_bytes(m, n, k) / bytes_per_s
    return 2.0 * m * n * k / seconds if min(m, n, k) >= LARGE_SIDE and seconds > 0 else 0.0
