"""What a map operator's tasks do: read or take blocks, work, yield blocks.

Real counterpart: ``_map_task`` of ``_internal/execution/operators/map_operator.py`` and
``_MapWorker`` of ``actor_pool_map_operator.py``. The task is a streaming generator: it stops while
two of its blocks have not been taken.

Of a fused chain each step's cost counts on the rows and bytes that reach it. Cores, the GPU and
storage are used one after the other, as one Python thread does, output block by output block.

Batches inside a task cost the library's Python per batch; what their conversions copy is in the
costs per row or byte.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from raysim.perf.ray_core import RayCosts
from raysim.raycore.running import RunningTask
from raysim.raycore.scripts import Script, compute, script, sleep, yield_item
from raysim.raycore.tasks import Body, Payload, TaskError
from raysim.raylibs.actors import imports
from raysim.raylibs.data.blocks import Made, Part, Piece, cut, shared_out
from raysim.raylibs.data.stages import MapStage
from raysim.units import NS_PER_S, to_ns

LIBRARY = "ray.data"


class Work(NamedTuple):
    """What one task is to do, as its first argument says."""

    stage: MapStage
    rows: int
    size_bytes: int
    target_bytes: int
    slower: float
    """This task's time over the usual one."""
    parts: tuple[tuple[int, int], ...]
    """(First, rows) to be taken of each input block."""
    made: dict[int, Made]
    """Metadata of its blocks by number; a second attempt writes the same again."""
    number: int
    """Among the operator's tasks; of a read, which part of the source."""
    storage: Any = None
    """Fetches and stores bytes of a bucket (``storage.Bucket``)."""
    exchange: Any = None
    """Fetches its part of a shuffle (``exchange.Exchange``)."""
    own_core_s: float = 0.0
    """What the library's own Python takes, beside what the steps cost."""


class Flow(NamedTuple):
    """What a chain does with a task's input, in all."""

    rows: int
    size_bytes: int
    core_s: float
    wait_s: float
    fetched_bytes: float
    stored_bytes: float


def flow_of(stage: MapStage, rows: int, size_bytes: int) -> Flow:
    """Costs and output of a chain on so many rows."""
    core_s = wait_s = fetched = stored = 0.0
    reading = stage.reads
    in_rows, in_bytes = float(rows), float(size_bytes)
    for step in stage.steps:
        core_s += step.core_s_per_row * in_rows + step.core_s_per_byte * in_bytes
        wait_s += (step.gpu_s_per_row + step.io_s_per_row) * in_rows
        fetched += step.stored_row_bytes * in_rows
        stored += step.written_row_bytes * in_rows
        rows_out = in_rows * step.rows_out_per_row
        each = in_bytes / in_rows if in_rows else 0.0
        if reading is not None and step is stage.steps[0]:
            each = reading.row_bytes
        if step.row_bytes_out is not None:
            each = step.row_bytes_out
        each *= step.bytes_out_frac
        in_rows, in_bytes = rows_out, rows_out * each
    return Flow(round(in_rows), round(in_bytes), core_s, wait_s, fetched, stored)


def own_core_s(stage: MapStage, rows: int, costs: RayCosts) -> float:
    """What the library's own Python takes a worker for a task of so many rows."""
    sizes = [step.batch_size or rows for step in stage.steps]
    batches = sum(math.ceil(rows / size) for size in sizes if size)
    task_ns = costs.data_exchange_ns if stage.bulk or stage.samples else costs.data_map_ns
    return (task_ns + costs.data_batch_ns * batches) / NS_PER_S


def run_map(work: Work, blocks: list[Any]) -> Script:
    """What a task does, or a call of an actor's ``submit``, with the contents of its blocks."""
    stage = work.stage
    if any(step.hook is not None for step in stage.steps):
        return (yield from _run_hooks(work, blocks))
    if work.exchange is not None:
        yield work.exchange.fetch(work.parts[0][0])
    flow = flow_of(stage, work.rows, work.size_bytes)
    if stage.splits > 1 or stage.cuts:
        parts = shared_out(flow.rows, flow.size_bytes, stage.splits)
    else:
        parts = cut(flow.rows, flow.size_bytes, work.target_bytes)
    for number, part in enumerate(parts):
        share = part.rows / flow.rows if flow.rows else 1 / len(parts)
        yield from _spend(work, flow, share)
        work.made[number] = part
        yield yield_item(Payload(part.size_bytes))
    return ()


def _spend(work: Work, flow: Flow, share: float) -> Script:
    """Time of one output block."""
    if flow.fetched_bytes:
        yield work.storage.fetch(flow.fetched_bytes * share)
    if flow.core_s:
        core_s = flow.core_s * work.slower + work.own_core_s
        yield compute(core_s * share, work.stage.width)
    elif work.own_core_s:
        yield compute(work.own_core_s * share)
    if flow.wait_s:
        yield sleep(to_ns(flow.wait_s * share * work.slower))
    if flow.stored_bytes:
        yield work.storage.store(flow.stored_bytes * share)


def _run_hooks(work: Work, blocks: list[Any]) -> Script:
    """User code on contents: every step takes all blocks of the one before."""
    if work.own_core_s:
        yield compute(work.own_core_s)
    if work.exchange is not None:
        number = work.parts[0][0]
        yield work.exchange.fetch(number)
        parts = [Part(p.content, 0, p.rows) for p in work.exchange.parts[number].pieces]
    else:
        contents = blocks if work.stage.reads is None else [work.number] * len(work.parts)
        parts = [Part(c, *part) for c, part in zip(contents, work.parts, strict=True)]
    made: list[tuple[Any, int, int]] = []
    for step in work.stage.steps:
        if step.hook is not None:
            answer = yield step.hook(parts)
            if isinstance(answer, TaskError):
                return answer
            made = answer
            parts = [Part(content, 0, rows) for content, rows, _ in made]
    if work.stage.cuts:
        yield from _hand_over_slices(work, [Piece(*piece) for piece in made])
        return ()
    for number, (content, rows, size_bytes) in enumerate(_blocks(work, made)):
        pieces = (Piece(content, rows, size_bytes),) if work.stage.samples else ()
        work.made[number] = Made(rows, size_bytes, pieces)
        yield yield_item(Payload(size_bytes, content))
    return ()


def _blocks(work: Work, made: list[tuple[Any, int, int]]) -> list[tuple[Any, int, int]]:
    """What a hook has made, cut as a task's output is, if it can be."""
    slices = work.stage.steps[-1].slices
    if slices is None:
        return made
    found = []
    for content, rows, size_bytes in made:
        if work.stage.splits > 1:
            parts = shared_out(rows, size_bytes, work.stage.splits)
        else:
            parts = cut(rows, size_bytes, work.target_bytes)
        at = 0
        for part in parts:
            found.append((slices(content, at, at + part.rows), part.rows, part.size_bytes))
            at += part.rows
    return found


def _hand_over_slices(work: Work, pieces: list[Piece]) -> Script:
    """Pieces of all partitions as a few objects."""
    begin = 0
    for number, share in enumerate(shared_out(len(pieces), 0, work.stage.splits)):
        mine = tuple(pieces[begin : begin + share.rows])
        begin += share.rows
        size_bytes = sum(p.size_bytes for p in mine)
        work.made[number] = Made(sum(p.rows for p in mine), size_bytes, mine)
        yield yield_item(Payload(size_bytes))


class MapWorker:
    """An actor of a pool: its constructor loads the model."""

    def __init__(self, process: Any, stage: MapStage) -> None:
        self.process = process
        self.stage = stage

    def construct(self) -> Script:
        """The program's own constructors."""
        for step in self.stage.steps:
            if step.construct is not None:
                error = yield step.construct()
                if isinstance(error, TaskError):
                    return error
        return None

    def start(self) -> Script:
        """What its constructor takes beside the program's own; the pool calls it first."""
        yield from imports(self.process, LIBRARY, self.process.costs.data_worker_core_s)
        for step in self.stage.steps:
            if step.setup_s:
                yield sleep(to_ns(step.setup_s))
        return self.process.me.node_id

    def submit(self, work: Work, *blocks: Any) -> Script:
        """One task."""
        return (yield from run_map(work, list(blocks)))


def body_of(stage: MapStage) -> Body:
    """A task's body, with the operator's name."""

    def run(running: RunningTask) -> Script:
        first, *blocks = running.args
        assert isinstance(first, Payload), "a task's work does not fail"
        contents = [block.data for block in blocks]
        running.worker.resource_ids = running.resource_ids
        yield from imports(running.worker, LIBRARY, running.worker.costs.data_worker_core_s)
        return (yield from run_map(first.data, contents))

    run.__name__ = stage.name
    return script(run)
