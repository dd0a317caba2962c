"""Constants that a table of ``raysim measure ray`` says by themselves: priors of a fit.

One row, the slope of rows over ``count``, or a spread; what only a sum of constants explains is
left to the fit, and so is what rows show that timed a call while Ray's other processes shared the
cores: they hold some of their work too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysim.calibrate.rows import DECILES_APART
from raysim.measure.table import MeasuredRow, read_rows
from raysim.perf.profile import Constant, known, unit_of
from raysim.units import MIB

TABLE = "ray_core.csv"
ONE_CHUNK_BYTES = 5 * MIB
"""``object_manager_default_chunk_size``."""
COPIES_SHARE = 0.57
"""0.73 of 1.28 ns a byte that threads of two raylets worked, with 200 objects of 256 KiB and of
1 MiB in one ``ray.get`` (ray 2.60, a Xeon of 2 cores, 2026-11, /proc schedstat)."""
Rows = Sequence[MeasuredRow]
"""Of one ``op``, by rising ``count``, then rising ``bytes``."""


@dataclass(frozen=True, slots=True)
class Said:
    """How the rows of one operation say a constant."""

    name: str
    op: str
    value: Callable[[Rows], float | None]
    """In the table's unit, seconds where the constant is nanoseconds; None: they do not say."""
    how: str
    less: str = ""
    """The operation whose value is taken from its own."""
    times: int = 1
    """How often it is."""


def last(rows: Rows) -> float | None:
    """The row of the most, where what is fixed per call weighs least."""
    return rows[-1].value


def first(rows: Rows) -> float | None:
    """The row of the fewest."""
    return rows[0].value


def slope(rows: Rows) -> float | None:
    """What one more costs, from the fewest to the most."""
    low, high = rows[0], rows[-1]
    many = count_of(high) - count_of(low)
    return (high.value - low.value) / many if many else None


def rate_of_more(rows: Rows) -> float | None:
    """Bytes per second of what larger objects have more; None if all are of one size."""
    (few, few_s), (many, many_s) = _smallest_and_largest(rows)
    return (many - few) / (many_s - few_s) if many_s > few_s else None


def rate_of_copies(rows: Rows) -> float | None:
    """Bytes per second of one of the two copies of objects that go as one chunk.

    Of what more bytes cost, the copies are ``COPIES_SHARE``, gRPC the rest.
    """
    single = [row for row in rows if int(row.parameters["bytes"]) <= ONE_CHUNK_BYTES]
    sizes = sorted((int(row.parameters["bytes"]), row.value) for row in single)
    if len(sizes) < 2 or sizes[-1][1] <= sizes[0][1]:
        return None
    (few, few_s), (many, many_s) = sizes[0], sizes[-1]
    return 2 * (many - few) / ((many_s - few_s) * COPIES_SHARE)


def time_at_no_size(rows: Rows) -> float | None:
    """Seconds of an object, less those of its bytes; None if all are of one size."""
    (few, few_s), (many, many_s) = _smallest_and_largest(rows)
    return few_s - few * (many_s - few_s) / (many - few) if many_s > few_s else None


def _smallest_and_largest(rows: Rows) -> list[tuple[int, float]]:
    """Bytes and seconds of rows that say bytes per second."""
    sizes = sorted((int(row.parameters["bytes"]), row.value) for row in rows)
    return [(size_bytes, size_bytes / rate) for size_bytes, rate in (sizes[0], sizes[-1])]


def spread(rows: Rows) -> float | None:
    """Standard deviation of the logarithm, between the 10th and the 90th percentile."""
    row = rows[-1]
    return math.log(row.high / row.low) / DECILES_APART if 0 < row.low < row.high else None


def count_of(row: MeasuredRow) -> int:
    """How many of what ``op`` says."""
    return int(row.parameters["count"])


SAID = (
    Said("per_arg_ns", "call_with_args", slope, "slope over arguments"),
    Said("per_ref_get_ns", "get", slope, "slope over references"),
    Said("per_value_get_ns", "get_of_replies", last, "seconds per reference"),
    Said("per_return_ns", "call_with_returns", slope, "slope over results, with the get of each"),
    Said("export_function_ns", "export_function", last, "CPU time of the thread that calls it"),
    Said(
        "import_function_ns", "import_function", last, "first result less a later one, and less a "
        "call of the GCS", less="kv_put",
    ),
    Said("wait_ns", "wait", first, "wait for one"),
    Said("per_ref_wait_ns", "wait", slope, "slope over references"),
    Said("serialize_bytes_per_s", "serialize", last, "rate"),
    Said("memcpy_bytes_per_s", "put_reused", last, "rate of the largest object"),
    Said("first_touch_bytes_per_s", "put_fresh", last, "rate of the largest object"),
    Said(
        "copy_bytes_per_s", "transfer", rate_of_copies,
        f"{COPIES_SHARE} of the slope over bytes of objects of one chunk",
    ),
    Said("worker_memory_bytes", "worker_memory", last, "resident size"),
    Said("worker_start_sigma", "worker_start", spread, "spread"),
    Said(
        "execute_async_wait_ns", "async_actor_calls_async", last,
        "time of a call less its threads' work", less="work_executor_async_actor_burst",
    ),
    Said(
        "connect_ns", "connect", last, "first call less the second, and less a call of the GCS",
        less="kv_put",
    ),
    Said("generator_item_ns", "generator_item", last, "CPU time of the generator's thread"),
    Said("channel_task_ns", "compiled_graph", slope, "slope over methods"),
    Said("worker_start_core_s", "work_worker_start", last, "all threads' work until it answers"),
    Said("first_value_core_s", "first_value", last, "CPU time of a new process"),
    Said("setup_worker_core_s", "work_setup_worker", last, "all threads' further work"),
    Said("node_background_cores", "work_background", last, "work of all other threads"),
    Said("spill_bytes_per_s", "spill", first, "rate of the largest objects"),
    Said("spill_again_bytes_per_s", "spill_again", first, "rate of the largest objects"),
    Said("restore_bytes_per_s", "restore", rate_of_more, "slope over bytes"),
    Said(
        "restore_ns", "restore", time_at_no_size, "time of an object at no size, less two calls of "
        "an actor, as its owner and its worker are asked", less="actor_call_sync", times=2,
    ),
)  # fmt: skip


def direct_constants(folder: Path) -> dict[str, Constant]:
    """Constants that the folder's ``ray_core.csv`` says; none where there is no such table.

    Raises
    ------
    CalibrationError
        The table cannot be read.
    """
    path = folder / TABLE
    if not path.exists():
        return {}
    found: dict[str, Constant] = {}
    everything = read_rows(path)
    for said in SAID:
        rows = [row for row in everything if row.parameters.get("op") == said.op]
        rows.sort(key=lambda row: (count_of(row), int(row.parameters["bytes"])))
        value = said.value(rows) if rows else None
        if said.less and value is not None:
            known_s = [row.value for row in everything if row.parameters.get("op") == said.less]
            value = value - said.times * known_s[-1] if known_s else None
        if value is None or not value > 0:
            continue
        scale = 1e9 if unit_of(said.name) == "ns" else 1.0
        found[said.name] = Constant(
            value=value * scale,
            unit=unit_of(said.name),
            prior=known("ray")[said.name],
            error=_error(rows[-1]),
            source=f"{said.how}, {TABLE}: {said.op}",
            rows=tuple(f"{said.op} x {count_of(row)}" for row in (rows[0], rows[-1])[-len(rows) :]),
        )
    return found


def _error(row: MeasuredRow) -> float:
    """Of a median over repetitions, as a share; 0 where they do not differ."""
    if not 0 < row.low < row.high:
        return 0.0
    return math.log(row.high / row.low) / DECILES_APART / math.sqrt(row.repetitions)
