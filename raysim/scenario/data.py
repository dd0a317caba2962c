"""A ``data`` section as a spec of ``raylibs.data``, with its trainers' job if it has one."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.hardware import catalog
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.iterate import Batching
from raysim.raylibs.data.job import Consumer, DataJob
from raysim.raylibs.data.specs import AllToAll, Dataset, Limit, Map, Operation, Source
from raysim.scenario.documents import Document, KeyPath
from raysim.scenario.schema_data import (
    ConsumerSection,
    DataSection,
    MapSection,
    OperationSection,
    SourceSection,
)
from raysim.scenario.trainer import TrainingOf, note_files
from raysim.units import parse_bytes, parse_seconds
from raysim.workloads.data_job import FedTraining
from raysim.workloads.library import LibraryJob


def read_data(
    said: DataSection, at: KeyPath, folder: Path, document: Document, inputs: dict[KeyPath, Path]
) -> LibraryJob:
    """The dataset and its consumer.

    Raises
    ------
    ScenarioError
        No bucket or setting has that name, a setting refuses its value, or the training job is
        wrong.
    """
    bucket = None
    if said.bucket is not None:
        try:
            bucket = catalog.object_storage(said.bucket)
        except ScenarioError as error:
            known = error.problems[0].message
            raise ScenarioError(document.problem((*at, "bucket"), known)) from None
    if bucket is None and _uses_bucket(said):
        raise ScenarioError(
            document.problem(at, "rows are fetched from or written to a bucket: give `bucket`")
        )
    job = DataJob(
        dataset=Dataset(
            source=source_of(said.source), operations=tuple(_operation(o) for o in said.operations)
        ),
        consumer=_consumer(said.consumer),
        context=_context(said.context, document, (*at, "context")),
        bucket=bucket,
        connections=said.connections,
        materialize=said.materialize,
    )
    if said.consumer.train is None:
        return job
    at = (*at, "consumer")
    note_files(at, folder, document, inputs)
    training = TrainingOf(folder, document, at)
    training(said.consumer.workers)
    return FedTraining(job_of=training, data=job)


def _uses_bucket(said: DataSection) -> bool:
    maps = [o.map for o in said.operations if o.map is not None]
    return bool(said.source.stored or any(m.fetched or m.written for m in maps))


def source_of(said: SourceSection) -> Source:
    """Where rows come from."""
    return Source(
        name=said.name, rows=said.rows, row_bytes=said.row, files=said.files,
        core_s_per_row=said.core, io_s_per_row=said.io, stored_row_bytes=said.stored,
        override_num_blocks=said.override_num_blocks,
    )  # fmt: skip


def _operation(said: OperationSection) -> Operation:
    if said.limit is not None:
        return Limit(rows=said.limit)
    if said.map is not None:
        return _map(said.map)
    shuffle = said.all_to_all
    assert shuffle is not None, "the schema lets no other through"
    return AllToAll(
        kind=shuffle.kind, partitions=shuffle.partitions, shuffle=shuffle.shuffle,
        map_core_s_per_byte=shuffle.map_core_per_byte,
        merge_core_s_per_byte=shuffle.merge_core_per_byte,
        reduce_core_s_per_byte=shuffle.reduce_core_per_byte,
        map_cpus=shuffle.map_cpus, reduce_cpus=shuffle.reduce_cpus,
        compressed_frac=shuffle.compressed, fused=shuffle.fused,
        rows_out_frac=shuffle.rows_out, bytes_out_frac=shuffle.bytes_out,
    )  # fmt: skip


def _map(said: MapSection) -> Map:
    return Map(
        name=said.name, core_s_per_row=said.core, core_s_per_byte=said.core_per_byte,
        gpu_s_per_row=said.gpu, io_s_per_row=said.io, rows_out_per_row=said.rows_out,
        row_bytes_out=said.row, stored_row_bytes=said.fetched, written_row_bytes=said.written,
        batch_size=said.batch_size, num_cpus=said.num_cpus, num_gpus=said.num_gpus,
        concurrency=said.concurrency, actors=said.actors, setup_s=said.setup,
        max_concurrency=said.max_concurrency, width=said.width, cv_frac=said.cv,
    )  # fmt: skip


def _consumer(said: ConsumerSection) -> Consumer:
    batch_size = said.batch_size or Batching().batch_size or 1
    return Consumer(
        kind=said.kind,
        batching=Batching(
            batch_size=batch_size, prefetch_batches=said.prefetch_batches,
            drop_last=said.drop_last, core_s_per_row=said.collate,
            local_shuffle_buffer_size=said.local_shuffle_buffer_size,
        ),
        step_s_per_row=(said.step or 0.0) / batch_size,
        workers=said.workers,
        worker_cpus=said.cpus,
        worker_gpus=said.gpus,
        strategy=said.strategy,
        epochs=said.epochs,
        equal=said.equal,
    )  # fmt: skip


def _context(said: dict[str, Any], document: Document, at: KeyPath) -> DataContext:
    """Settings by Ray's names; sizes and times as texts where they are such."""
    default = DataContext()
    known = [f.name for f in fields(default) if not f.name.endswith("_ns")]
    found: dict[str, Any] = {}
    for name, value in said.items():
        if name not in known:
            raise ScenarioError(
                document.problem(
                    (*at, name), f"DataContext has no setting {name}; it has {', '.join(known)}"
                )
            )
        try:
            found[name] = _setting(name, value, getattr(default, name))
        except ValueError as error:
            raise ScenarioError(document.problem((*at, name), str(error))) from None
    return replace(default, **found)


def _setting(name: str, value: Any, default: Any) -> Any:
    """A value of the default's kind; ValueError if it is of another."""
    if isinstance(value, str) and not isinstance(default, str):
        value = parse_seconds(value) if name.endswith("_s") else parse_bytes(value)
    kinds = [
        "number" if isinstance(v, int | float) and not isinstance(v, bool) else type(v).__name__
        for v in (value, default)
    ]
    if default is not None and kinds[0] != kinds[1]:
        raise ValueError(f"{name} is {default!r} by default, got {value!r}")
    return value
