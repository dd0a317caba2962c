"""``ray.data.Dataset`` of a program: lazy operations, and what makes them run.

Real counterpart: ``ray/data/dataset.py``. Executions are those of ``raylibs.data`` in the process
of the program that asks; the program's functions run in the tasks that call them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.data import aggregate as aggs
from raysim.rayapi.data import (
    bundles,
    exchanges,
    executions,
    joins,
    predicates,
    splits,
    stats,
    writes,
)
from raysim.rayapi.data.columnar import Columnar
from raysim.rayapi.data.columns import Columns, joined, sliced, to_batch
from raysim.rayapi.data.consuming import with_first
from raysim.rayapi.data.context import DataContext
from raysim.rayapi.data.dataset_repr import HEAD_ROWS, MOST_ROWS, ascii_repr, rows_after, summary
from raysim.rayapi.data.exchanges import MixStoppingCondition
from raysim.rayapi.data.functions import (
    call_of,
    check_batch_size,
    check_workers,
    custom_resources,
    name_of,
)
from raysim.rayapi.data.grouped import GroupedData
from raysim.rayapi.data.iterator import DataIterator
from raysim.rayapi.data.keys import SortKey
from raysim.rayapi.data.randomness import draws_of
from raysim.rayapi.library_code import session_here
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.data import specs

_MISSING = (
    "maps, filters, sorts, groups, joins, shuffles, zips, splits, aggregations, batches, and "
    "write_parquet, write_csv, write_json, write_numpy"
)

_REFUSED = frozenset([
    "copy", "deserialize_lineage", "explain", "get_dataset_id", "get_stats_summary",
    "has_serializable_lineage", "iter_jax_batches", "iter_tf_batches", "serialize_lineage",
    "streaming_train_test_split", "summary", "to_daft", "to_dask", "to_mars", "to_modin",
    "to_random_access_dataset", "to_spark", "to_tf", "write_bigquery", "write_clickhouse",
    "write_delta", "write_iceberg", "write_kafka", "write_lance", "write_mongo",
    "write_snowflake", "write_tfrecords", "write_turbopuffer",
])  # fmt: skip
"""What Ray 2.60's has besides."""


class Dataset(Columnar):
    """``ray.data.Dataset``."""

    def __init__(
        self, spec: specs.Dataset, kept: tuple[Any, ...] = (), *, first: Columns | None = None,
        files: tuple[str, ...] = (), context: DataContext | None = None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self.context = (context or DataContext.get_current()).copy()
        """The settings it runs under: those there were when it was made."""
        self._kept = kept
        """Objects it is made of stay while it does."""
        self._files = files
        """That it is read from."""
        self._name: str | None = None
        self._source_row = self._first = first
        """A row of it, where one is known."""
        self.ran: Any = None
        """The last execution of it, or what is known of that."""

    @property
    def name(self) -> str | None:
        """As ``set_name`` said."""
        return self._name

    def __reduce__(self) -> Any:
        """Other processes have the same one."""
        return executions.known, (executions.number_of(self),)

    def __repr__(self) -> str:
        """As Ray draws it, where the columns are known."""
        schema = self.schema(fetch_if_missing=False)
        if schema is None:
            source = Dataset(
                specs.Dataset(source=self._spec.source), first=self._source_row, files=self._files
            )
            return summary(self._spec, source.schema(fetch_if_missing=False))
        return ascii_repr(schema, rows_after(self._spec), None, self.name)

    def _then(self, operation: specs.Operation, *others: Dataset) -> Dataset:
        kept = (*self._kept, *(k for other in others for k in other._kept))  # noqa: SLF001  (its own class)
        made = Dataset(self._spec.then(operation), kept, files=self._files, context=self.context)
        made._source_row, made._name = self._source_row, self._name
        return made

    def _alike(self, operation: specs.Operation, *others: Dataset) -> Dataset:
        """An operation that leaves columns as they are."""
        made: Dataset = with_first(self._then(operation, *others), self._first)
        return made

    def _drawn(self, seed: Any, make: Callable[[int], specs.Drawn]) -> specs.Drawn:
        """An operation that every execution may draw anew, when no program runs."""
        draws = draws_of(seed)
        return replace(make(draws()), again=lambda: make(draws()))

    # ---- rows ------------------------------------------------------------------------------------

    @program_call
    def map_batches(
        self, fn: Any, *, batch_size: int | str | None = None, compute: Any = None,
        batch_format: str | None = "default", zero_copy_batch: bool = True, fn_args: Any = None,
        fn_kwargs: Any = None, fn_constructor_args: Any = None, fn_constructor_kwargs: Any = None,
        num_cpus: float | None = None, num_gpus: float | None = None, memory: float | None = None,
        concurrency: Any = None, **remote_args: Any,
    ) -> Dataset:  # fmt: skip
        """``Dataset.map_batches``."""
        check_batch_size(batch_size, num_gpus)
        to_batch({}, batch_format)  # whether there is such a format is said at once
        del zero_copy_batch, memory
        options = {
            "fn_args": fn_args, "fn_kwargs": fn_kwargs, "compute": compute, "num_cpus": num_cpus,
            "fn_constructor_args": fn_constructor_args, "num_gpus": num_gpus,
            "fn_constructor_kwargs": fn_constructor_kwargs, "concurrency": concurrency,
            **remote_args,
        }  # fmt: skip
        return self.by_batches(fn, batch_size=batch_size, batch_format=batch_format, **options)

    def by_batches(
        self, fn: Any, *, batch_size: int | str | None, batch_format: str | None, **options: Any
    ) -> Dataset:
        """``map_batches`` of whatever size, as ``map_groups`` needs it."""
        return self._mapped(
            "MapBatches", fn, "map_batches", options, batch_size=batch_size,
            batch_format=batch_format,
        )  # fmt: skip

    @program_call
    def map(self, fn: Any, **options: Any) -> Dataset:
        """``Dataset.map``."""
        return self._mapped("Map", fn, "map", options)

    @program_call
    def flat_map(self, fn: Any, **options: Any) -> Dataset:
        """``Dataset.flat_map``."""
        return self._mapped("FlatMap", fn, "flat_map", options)

    @program_call
    def filter(self, fn: Any = None, expr: Any = None, **options: Any) -> Dataset:
        """``Dataset.filter``: by a function, or by an expression."""
        if (fn is None) == (expr is None):
            raise ValueError("Exactly one of 'fn' or 'expr' must be provided.")
        if expr is None:
            if not callable(fn):
                named = type(fn).__name__
                raise ValueError(f"fn must be a UserDefinedFunction, but got {named} instead.")
            made = self._mapped("Filter", fn, "filter", options)
        else:
            made = predicates.filtered(self, expr, options)
        made._first = self._first  # noqa: SLF001  (its own class)
        return made

    def _mapped(
        self, title: str, fn: Any, kind: str, options: dict[str, Any], **more: Any
    ) -> Dataset:
        said = dict(options)
        check_workers(fn, said)
        made_of = (
            said.pop("fn_constructor_args", None) or (),
            said.pop("fn_constructor_kwargs", None) or {},
        )
        call = call_of(
            session_here(), fn, kind, made_of, fn_args=tuple(said.pop("fn_args", None) or ()),
            fn_kwargs=dict(said.pop("fn_kwargs", None) or {}), **more,
        )  # fmt: skip
        concurrency = getattr(said.get("compute"), "concurrency", said.get("concurrency"))
        return self._then(
            specs.Map(
                name=f"{title}({name_of(fn)})", hook=call,
                batch_size=None if isinstance(call.batch_size, str) else call.batch_size,
                num_cpus=said.get("num_cpus"), num_gpus=said.get("num_gpus") or 0.0,
                concurrency=concurrency, actors=isinstance(fn, type),
                construct=call.construct if isinstance(fn, type) else None,
                max_concurrency=said.get("max_concurrency") or 1,
                remote_args=custom_resources(said), slices=sliced,
                changes_rows=kind in ("filter", "flat_map"),
            )
        )  # fmt: skip

    def by_blocks(
        self, name: str, made: Any, options: dict[str, Any], *, actors: bool = False,
        changes_rows: bool = False,
    ) -> Dataset:  # fmt: skip
        """``made`` of every block's Arrow table, under an operator's name."""
        call = call_of(session_here(), made, "map_batches", batch_format="pyarrow")
        concurrency = getattr(options.get("compute"), "concurrency", options.get("concurrency"))
        return self._then(
            specs.Map(
                name=name, hook=call, num_cpus=options.get("num_cpus"),
                num_gpus=options.get("num_gpus") or 0.0, concurrency=concurrency, actors=actors,
                remote_args=custom_resources(options), slices=sliced, changes_rows=changes_rows,
            )
        )  # fmt: skip

    # ---- columns ---------------------------------------------------------------------------------

    @program_call
    def random_sample(self, fraction: float, *, seed: Any = None) -> Dataset:
        """``Dataset.random_sample``: each row with this chance."""
        if not 0 <= fraction <= 1:
            raise ValueError("Fraction must be between 0 and 1.")
        make = partial(exchanges.random_sample, session_here(), fraction)
        return self._then(self._drawn(seed, make))

    # ---- all to all ------------------------------------------------------------------------------

    def limit(self, limit: int) -> Dataset:
        """``Dataset.limit``."""
        return self._alike(specs.Limit(rows=max(limit, 0)))

    def union(self, *other: Dataset) -> Dataset:
        """``Dataset.union``."""
        known = [o._first for o in (self, *other) if o._first]  # noqa: SLF001  (its own class)
        made = self._then(specs.Union(others=tuple(o._spec for o in other)), *other)  # noqa: SLF001
        return with_first(made, joined(known)) if len(known) == 1 + len(other) else made

    def mix(
        self, *other: Dataset, weights: list[float] | None = None,
        stopping_condition: MixStoppingCondition = MixStoppingCondition.STOP_ON_LONGEST_DROP,
    ) -> Dataset:  # fmt: skip
        """``Dataset.mix``."""
        return self._alike(exchanges.mixed((self, *other), weights, stopping_condition), *other)

    @program_call
    def zip(self, *other: Dataset) -> Dataset:
        """``Dataset.zip``."""
        found = self
        for each in other:
            first, more = found._first, each._first  # noqa: SLF001  (its own class)
            found = found._then(exchanges.zipped(session_here(), each._spec), each)  # noqa: SLF001  (its own class)
            if first and more:
                with_first(found, first, partial(exchanges.beside, other=more))
        return found

    @program_call
    def random_shuffle(
        self, *, seed: Any = None, num_blocks: int | None = None, **options: Any
    ) -> Dataset:
        """``Dataset.random_shuffle``."""
        del options
        if self.context.settings().shuffle_strategy == "sort_shuffle_push_based":
            raise NotEmulatedError("ray.data random_shuffle by push", "the pull-based shuffle")
        blocks = num_blocks or executions.estimated_blocks(self)
        made = partial(exchanges.random_shuffle, session_here(), partitions=blocks)
        return self._alike(self._drawn(seed, made))

    @program_call
    def randomize_block_order(self, *, seed: Any = None) -> Dataset:
        """``Dataset.randomize_block_order``: rows stay in their blocks."""
        return self._alike(self._drawn(seed, exchanges.block_order))

    @program_call
    def repartition(
        self, num_blocks: int | None = None, target_num_rows_per_block: int | None = None, *,
        strict: bool = False, shuffle: bool = False, keys: list[str] | None = None,
        sort: bool = False,
    ) -> Dataset:  # fmt: skip
        """``Dataset.repartition``."""
        exchanges.check_repartition(
            num_blocks, target_num_rows_per_block, keys, sort=sort, shuffle=shuffle, strict=strict
        )
        session = session_here()
        made: specs.Operation
        if target_num_rows_per_block is not None:
            made = exchanges.by_rows(session, target_num_rows_per_block, strict=strict)
        elif keys:
            assert num_blocks is not None, "checked above"
            made = exchanges.by_keys(session, tuple(keys), num_blocks, sort=sort)
        else:
            assert num_blocks is not None, "checked above"
            made = exchanges.repartition(session, num_blocks, shuffle=shuffle)
        return self._alike(made)

    @program_call
    def sort(self, key: Any, descending: Any = False, boundaries: Any = None) -> Dataset:
        """``Dataset.sort``."""
        if key is None:
            raise ValueError("The 'key' parameter cannot be None for sorting.")
        said = SortKey.of(key, descending, boundaries)
        if self._first:
            said.check(list(self._first))
        blocks = executions.estimated_blocks(self)
        parts = len(said.boundaries) + 1 if said.boundaries else blocks
        return self._alike(exchanges.sorting(session_here(), said, parts, blocks))

    join = joins.join

    # ---- groups and totals -----------------------------------------------------------------------

    def groupby(self, key: Any, num_partitions: int | None = None) -> GroupedData:
        """``Dataset.groupby``."""
        if num_partitions is not None and num_partitions <= 0:
            raise ValueError("`num_partitions` must be a positive integer")
        if key is not None and not self._spec.operations:
            SortKey.of(key).check(self.columns() or [])
        return GroupedData(self, key, num_partitions=num_partitions)

    def aggregate(self, *aggs: Any) -> Any:
        """``Dataset.aggregate``."""
        found = self.groupby(None).aggregate(*aggs).take(1)
        return found[0] if found else None

    def columns_to_aggregate(self, on: Any, keys: tuple[str, ...] = ()) -> list[str]:
        """Those said, or all but the keys."""
        if on is None:
            on = [name for name in self.columns() or [] if name not in keys]
        found = on if isinstance(on, list) else [on]
        if not found:
            raise ValueError("At least 1 column to aggregate on has to be provided")
        return found

    def _total(self, agg: Any, on: Any, **more: Any) -> Any:
        found = self.aggregate(*(agg(name, **more) for name in self.columns_to_aggregate(on)))
        return next(iter(found.values())) if found is not None and len(found) == 1 else found

    def sum(self, on: Any = None, ignore_nulls: bool = True) -> Any:
        """``Dataset.sum``."""
        return self._total(aggs.Sum, on, ignore_nulls=ignore_nulls)

    def min(self, on: Any = None, ignore_nulls: bool = True) -> Any:
        """``Dataset.min``."""
        return self._total(aggs.Min, on, ignore_nulls=ignore_nulls)

    def max(self, on: Any = None, ignore_nulls: bool = True) -> Any:
        """``Dataset.max``."""
        return self._total(aggs.Max, on, ignore_nulls=ignore_nulls)

    def mean(self, on: Any = None, ignore_nulls: bool = True) -> Any:
        """``Dataset.mean``."""
        return self._total(aggs.Mean, on, ignore_nulls=ignore_nulls)

    def std(self, on: Any = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        """``Dataset.std``."""
        return self._total(aggs.Std, on, ddof=ddof, ignore_nulls=ignore_nulls)

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """``Dataset.unique``."""
        found: list[Any] = self._total(aggs.Unique, column, ignore_nulls=ignore_nulls)
        return found

    # ---- executions ------------------------------------------------------------------------------

    @program_call
    def streaming_split(
        self, n: int, *, equal: bool = False, locality_hints: list[str] | None = None
    ) -> list[DataIterator]:
        """``Dataset.streaming_split``."""
        return [
            DataIterator(share)
            for share in executions.shares(self, n, equal=equal, hints=locality_hints)
        ]

    @program_call
    def materialize(self) -> MaterializedDataset:
        """``Dataset.materialize``."""
        source, kept, ran = executions.materialized(self)
        made = MaterializedDataset(
            specs.Dataset(source=source), (*self._kept, kept), context=self.context
        )
        self.ran, made.ran, made._name = ran, ran, self._name  # noqa: SLF001  (its own class)
        return made

    stats = stats.stats

    def num_blocks(self) -> int:
        """Of materialised data."""
        raise NotImplementedError(
            "Number of blocks is only available for `MaterializedDataset`,because the number of "
            "blocks may dynamically change during execution.Call `ds.materialize()` to get a "
            "`MaterializedDataset`."
        )

    # ---- splits ----------------------------------------------------------------------------------

    def split(
        self, n: int, *, equal: bool = False, locality_hints: Any = None
    ) -> list[MaterializedDataset]:
        """``Dataset.split``."""
        if n <= 0:
            raise ValueError(f"The number of splits {n} is not positive.")
        if locality_hints:
            raise NotEmulatedError("ray.data.Dataset.split(locality_hints=)", "streaming_split")
        whole = self.materialize()
        if equal:
            each = whole.count() // n
            return whole.split_at_indices([each * i for i in range(1, n + 1)])[:n]
        return [whole.part(blocks) for blocks in splits.by_blocks(whole.blocks, n)]

    def split_at_indices(self, indices: list[int]) -> list[MaterializedDataset]:
        """``Dataset.split_at_indices``."""
        splits.check_indices(indices)
        whole = self.materialize()
        return [whole.part(blocks) for blocks in splits.at(whole.blocks, indices)]

    def split_proportionately(self, proportions: list[float]) -> list[MaterializedDataset]:
        """``Dataset.split_proportionately``."""
        splits.check_proportions(proportions)
        whole = self.materialize()
        return whole.split_at_indices(splits.ends(proportions, whole.count()))

    train_test_split = splits.train_test_split

    # ---- what is known of it ---------------------------------------------------------------------

    to_arrow_refs, to_pandas_refs = bundles.to_arrow_refs, bundles.to_pandas_refs
    to_numpy_refs, get_internal_block_refs = bundles.to_numpy_refs, bundles.to_arrow_refs
    iter_internal_ref_bundles = bundles.iter_internal_ref_bundles

    def set_name(self, name: str | None) -> None:
        """``Dataset.set_name``."""
        self._name = name

    def input_files(self) -> list[str]:
        """``Dataset.input_files``."""
        return list(self._files)

    def size_bytes(self) -> int:
        """``Dataset.size_bytes``: of what is only read, as its source says."""
        if self._spec.operations:
            return self.materialize().size_bytes()
        return round(self._spec.source.rows * self._spec.source.row_bytes)

    # ---- files -----------------------------------------------------------------------------------

    write_parquet, write_csv = writes.write_parquet, writes.write_csv
    write_json, write_numpy, write_orc = writes.write_json, writes.write_numpy, writes.write_orc
    write_images, write_sql = writes.write_images, writes.write_sql
    write_webdataset = writes.write_webdataset

    def write_datasink(self, datasink: Any, **options: Any) -> None:
        """``Dataset.write_datasink``: by what a program has written itself."""
        from raysim.rayapi.data.datasource import write_datasink

        write_datasink(self, datasink, **options)

    def __getattr__(self, name: str) -> Any:
        """What Ray has and this class does not."""
        if name not in _REFUSED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotEmulatedError(f"ray.data.Dataset.{name}", _MISSING)


class MaterializedDataset(Dataset):
    """``ray.data.MaterializedDataset``: its blocks are objects."""

    @property
    def blocks(self) -> tuple[Any, ...]:
        """What it holds."""
        return self._spec.source.blocks

    def part(self, blocks: list[Any]) -> MaterializedDataset:
        """Some of its rows."""
        return MaterializedDataset(
            specs.Dataset(source=executions.source_of(tuple(blocks))), self._kept,
            context=self.context,
        )  # fmt: skip

    def __repr__(self) -> str:
        """With some rows."""
        schema = self.schema()
        if self._spec.operations or schema is None:
            return super().__repr__()
        rows = self.count()
        if rows <= MOST_ROWS:
            return ascii_repr(schema, rows, self.take_all(), self.name)
        *_, last = self.split_at_indices([rows - (MOST_ROWS - HEAD_ROWS)])
        return ascii_repr(schema, rows, [*self.take(HEAD_ROWS), *last.take_all()], self.name)

    def materialize(self) -> MaterializedDataset:
        """It is."""
        return self if not self._spec.operations else super().materialize()

    def num_blocks(self) -> int:
        """How many."""
        return len(self.blocks)

    def size_bytes(self) -> int:
        """Of all blocks."""
        return sum(b.size_bytes for b in self.blocks)
