"""``ray.data.Dataset`` of a program: lazy operations, and what makes them run.

Real counterpart: ``ray/data/dataset.py``, ``iterator.py``. Executions are those of ``raylibs.data``
in the driver's process; the program's functions run in the tasks that call them.

Not modelled: order of blocks beyond that of the tasks that made them (``preserve_order``), and
batches that are fetched ahead while the driver's own code runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data.columns import (
    Columns,
    joined,
    rows_of,
    sliced,
    to_batch,
    to_rows,
)
from raysim.rayapi.data.context import DataContext
from raysim.rayapi.data.functions import Call, Gather, Scatter, call_of, name_of
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.library_code import play, session_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, drop, get, spawn
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data import specs
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.consumers import drain
from raysim.raylibs.data.executor import StreamingExecutor, available_cpus
from raysim.raylibs.data.iterate import next_block
from raysim.raylibs.data.plan import plan_of
from raysim.raylibs.data.stages import ExchangeStage

_MISSING = (
    "ray.data.range, from_items, from_numpy, from_pandas; map, map_batches, filter, flat_map, "
    "random_shuffle, limit, union"
)


@dataclass(frozen=True)
class ActorPoolStrategy:
    """``ray.data.ActorPoolStrategy``."""

    size: int | None = None
    min_size: int | None = None
    max_size: int | None = None

    @property
    def concurrency(self) -> int | tuple[int, int] | None:
        """As ``map_batches(concurrency=)``."""
        if self.size is not None:
            return self.size
        return (self.min_size or 1, self.max_size or 1_000_000)


class Dataset:
    """``ray.data.Dataset``."""

    def __init__(self, spec: specs.Dataset) -> None:
        self._spec = spec

    def _then(self, operation: specs.Operation) -> Dataset:
        return Dataset(self._spec.then(operation))

    # operations

    @program_call
    def map_batches(
        self, fn: Any, *, batch_size: int | str | None = None, compute: Any = None,
        batch_format: str | None = "default", zero_copy_batch: bool = True, fn_args: Any = None,
        fn_kwargs: Any = None, fn_constructor_args: Any = None, fn_constructor_kwargs: Any = None,
        num_cpus: float | None = None, num_gpus: float | None = None, memory: float | None = None,
        concurrency: Any = None, **remote_args: Any,
    ) -> Dataset:  # fmt: skip
        """``Dataset.map_batches``."""
        del zero_copy_batch, memory
        size = 1024 if batch_size == "default" else batch_size
        call = call_of(
            session_here(), fn, "map_batches",
            (fn_constructor_args or (), fn_constructor_kwargs or {}),
            batch_size=size, batch_format=batch_format, fn_args=tuple(fn_args or ()),
            fn_kwargs=dict(fn_kwargs or {}),
        )  # fmt: skip
        return self._mapped(
            "MapBatches", fn, call, compute, num_cpus, num_gpus, concurrency, remote_args
        )

    @program_call
    def map(self, fn: Any, **options: Any) -> Dataset:
        """``Dataset.map``."""
        return self._by_row("Map", fn, "map", options)

    @program_call
    def flat_map(self, fn: Any, **options: Any) -> Dataset:
        """``Dataset.flat_map``."""
        return self._by_row("FlatMap", fn, "flat_map", options)

    @program_call
    def filter(self, fn: Any, **options: Any) -> Dataset:
        """``Dataset.filter``."""
        return self._by_row("Filter", fn, "filter", options)

    def _by_row(self, name: str, fn: Any, kind: str, options: dict[str, Any]) -> Dataset:
        options = dict(options)
        made_of = (
            options.pop("fn_constructor_args", None) or (),
            options.pop("fn_constructor_kwargs", None) or {},
        )
        call = call_of(
            session_here(), fn, kind, made_of, fn_args=tuple(options.pop("fn_args", None) or ()),
            fn_kwargs=dict(options.pop("fn_kwargs", None) or {}),
        )  # fmt: skip
        return self._mapped(
            name, fn, call, options.pop("compute", None), options.pop("num_cpus", None),
            options.pop("num_gpus", None), options.pop("concurrency", None), options,
        )  # fmt: skip

    def _mapped(
        self, kind: str, fn: Any, call: Call, compute: Any, num_cpus: float | None,
        num_gpus: float | None, concurrency: Any, remote_args: dict[str, Any],
    ) -> Dataset:  # fmt: skip
        if isinstance(compute, ActorPoolStrategy):
            concurrency = compute.concurrency
        return self._then(
            specs.Map(
                name=f"{kind}({name_of(fn)})", hook=call, batch_size=call.batch_size,
                num_cpus=num_cpus, num_gpus=num_gpus or 0.0, concurrency=concurrency,
                actors=isinstance(fn, type), remote_args=remote_args.get("resources") or {},
            )
        )  # fmt: skip

    def add_column(self, col: str, fn: Any, **options: Any) -> Dataset:
        """``Dataset.add_column``: ``fn`` gets a batch as ``batch_format`` says."""
        return self.map_batches(lambda batch: {**batch, col: fn(batch)}, **options)

    def select_columns(self, cols: Any, **options: Any) -> Dataset:
        """``Dataset.select_columns``."""
        names = [cols] if isinstance(cols, str) else list(cols)
        return self.map_batches(lambda batch: {n: batch[n] for n in names}, **options)

    def drop_columns(self, cols: list[str], **options: Any) -> Dataset:
        """``Dataset.drop_columns``."""
        gone = set(cols)
        return self.map_batches(
            lambda batch: {n: v for n, v in batch.items() if n not in gone}, **options
        )

    def limit(self, limit: int) -> Dataset:
        """``Dataset.limit``."""
        return self._then(specs.Limit(rows=limit))

    def union(self, *other: Dataset) -> Dataset:
        """``Dataset.union``."""
        return self._then(specs.Union(others=tuple(o._spec for o in other)))  # noqa: SLF001  (its own class)

    @program_call
    def random_shuffle(
        self, *, seed: int | None = None, num_blocks: int | None = None, **options: Any
    ) -> Dataset:
        """``Dataset.random_shuffle``."""
        del options
        context = DataContext.get_current().settings()
        if context.shuffle_strategy == "sort_shuffle_push_based":
            raise NotEmulatedError("ray.data random_shuffle by push", "the pull-based shuffle")
        blocks = num_blocks or self._estimated_blocks(context)
        chosen = session_here().sim.seed if seed is None else seed
        return self._then(
            specs.AllToAll(
                kind="random_shuffle", partitions=blocks,
                map_hook=Scatter(partitions=blocks, seed=chosen), reduce_hook=Gather(seed=chosen),
            )
        )  # fmt: skip

    def _estimated_blocks(self, context: Any) -> int:
        cpus = play(lambda _: available_cpus())
        last = plan_of(self._spec.then(specs.AllToAll(kind="repartition")), context, cpus)
        return next(n.stage.partitions for n in last if isinstance(n.stage, ExchangeStage))

    # consumption

    def _blocks(self) -> Iterator[Columns]:
        """Contents, as the executor puts them out; the driver fetches each."""
        context = DataContext.get_current().settings()
        executor = play(lambda core: _begin(core, self._spec, context))
        try:
            while True:
                found = play(lambda _: _fetch(executor))
                if isinstance(found, TaskError):
                    raise_error(exception_of(found, ""))
                if found is None:
                    return
                yield found
        finally:
            executor.stop()

    @program_call
    def count(self) -> int:
        """``Dataset.count``; known of what is only read."""
        if not self._spec.operations:
            return self._spec.source.rows
        answer = play(lambda core: _drained(core, self._spec, _settings(), None))
        if isinstance(answer, TaskError):
            raise_error(exception_of(answer, ""))
        return int(answer.rows)

    @program_call
    def materialize(self) -> MaterializedDataset:
        """``Dataset.materialize``."""
        kept: list[Block] = []
        answer = play(lambda core: _drained(core, self._spec, _settings(), kept))
        if isinstance(answer, TaskError):
            raise_error(exception_of(answer, ""))
        rows = sum(b.rows for b in kept)
        size_bytes = sum(b.size_bytes for b in kept)
        source = specs.Source(
            name="Input", rows=rows, row_bytes=size_bytes / max(rows, 1),
            blocks=tuple(b._replace(owned=False) for b in kept),
        )  # fmt: skip
        return MaterializedDataset(specs.Dataset(source=source))

    @program_call
    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """``Dataset.take``."""
        return self._rows(Dataset(self._spec.then(specs.Limit(rows=limit))))

    @program_call
    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """``Dataset.take_all``."""
        rows = self._rows(self)
        if limit is not None and len(rows) > limit:
            raise ValueError(f"The dataset has more than the given limit of {limit} records.")
        return rows

    @staticmethod
    def _rows(dataset: Dataset) -> list[dict[str, Any]]:
        return [row for block in dataset._blocks() for row in to_rows(block)]

    def show(self, limit: int = 20) -> None:
        """``Dataset.show``."""
        for row in self.take(limit):
            sys.stdout.write(f"{row}\n")

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """``Dataset.iter_rows``."""
        for block in self._blocks():
            yield from to_rows(block)

    def iter_batches(
        self, *, prefetch_batches: int = 1, batch_size: int | None = 256,
        batch_format: str | None = "default", drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None, local_shuffle_seed: int | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """``Dataset.iter_batches``."""
        del prefetch_batches, local_shuffle_seed
        if local_shuffle_buffer_size:
            raise NotEmulatedError("iter_batches(local_shuffle_buffer_size=)", "random_shuffle()")
        waiting: Columns = {}
        for block in self._blocks():
            waiting = joined([waiting, block])
            size = batch_size or rows_of(waiting)
            while rows_of(waiting) >= size > 0:
                yield to_batch(sliced(waiting, 0, size), batch_format)
                waiting = sliced(waiting, size, rows_of(waiting))
        if rows_of(waiting) and not drop_last:
            yield to_batch(waiting, batch_format)

    def sum(self, on: str) -> Any:
        """``Dataset.sum`` of one column."""
        return sum(row[on] for row in self.iter_rows())

    def __getattr__(self, name: str) -> Any:
        """What Ray has and this class does not."""
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotEmulatedError(f"ray.data.Dataset.{name}", _MISSING)


class MaterializedDataset(Dataset):
    """``ray.data.MaterializedDataset``: its blocks are objects."""

    def num_blocks(self) -> int:
        """How many."""
        return len(self._spec.source.blocks)

    def size_bytes(self) -> int:
        """Of all blocks."""
        return sum(b.size_bytes for b in self._spec.source.blocks)


def _settings() -> Any:
    return DataContext.get_current().settings()


def _begin(process: CoreProcess, spec: specs.Dataset, context: Any) -> Script:
    """Start an execution in the driver."""
    plan = plan_of(spec, context, (yield from available_cpus()))
    executor = StreamingExecutor(process, plan, context, process.env.sim.rng)
    yield spawn(executor.run())
    return executor


def _fetch(executor: StreamingExecutor) -> Script:
    """The next block's content; None at the end."""
    block = yield from next_block(executor)
    if not isinstance(block, Block):
        return block
    assert block.ref is not None, "what comes out is an object"
    values = yield get([block.ref])
    if isinstance(values, TaskError):
        return values
    if block.owned:
        yield drop(block.ref)
    return sliced(values[0].data, block.start, block.start + block.rows)


def _drained(
    process: CoreProcess, spec: specs.Dataset, context: Any, kept: list[Block] | None
) -> Script:
    executor = yield from _begin(process, spec, context)
    executor.manager.has_consumer = False
    return (yield from drain(executor, kept))
