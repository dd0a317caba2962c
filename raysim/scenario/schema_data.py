"""A dataset and who takes its rows, as a scenario says it (``workloads.data_job``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from raysim.scenario.quantities import Bytes, Count, PositiveCount, Seconds, Share
from raysim.scenario.schema import ModelSection
from raysim.scenario.schema_train import WORKERS_MAX, TrainSection
from raysim.scenario.section import Section, shorthand

Quantity = Annotated[float, Field(ge=0, le=1e9)]
Few = Annotated[int, Field(ge=1, le=1_000_000)]


class SourceSection(Section):
    """Where rows come from."""

    name: str = Field("Read", min_length=1, description="Of the operator.")
    rows: PositiveCount = Field(description="How many.")
    row: Bytes = Field(description="Of one, in memory.")
    files: Count = Field(0, description="Read tasks at most, one a file; 0: any number.")
    stored: Bytes = Field(0, description="Of one row in the bucket, fetched over the network.")
    core: Seconds = Field(0.0, description="Of a core, per row.")
    io: Seconds = Field(0.0, description="Waiting for storage, per row.")
    override_num_blocks: Few | None = Field(None, description="As of ray.data.read_*().")


class FilesSection(SourceSection):
    """Files that a script reads, and that are not on this machine."""

    at: str = Field(min_length=1, description="What their paths begin with: s3://bucket/train/.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Type of each column by numpy's name, with its shape: uint8[224,224,3].",
    )
    bucket: str | None = Field(
        None, description="A service of the catalog; by default the disk of the node that reads."
    )
    connections: Few = Field(10, description="Of the bucket, side by side, of each read.")


class MapSection(Section):
    """``map_batches``, ``map``, ``filter``, ``flat_map``, ``write``."""

    name: str = Field("MapBatches", min_length=1, description="Of the operator.")
    core: Seconds = Field(0.0, description="Of a core, per row.")
    core_per_byte: Seconds = Field(0.0, description="Of a core, per byte of input: 1ns.")
    gpu: Seconds = Field(0.0, description="On the GPU, per row.")
    io: Seconds = Field(0.0, description="Waiting, per row.")
    rows_out: Quantity = Field(1.0, description="Rows out of one.")
    row: Bytes | None = Field(None, description="Of one afterwards; by default as before.")
    fetched: Bytes = Field(0, description="From the bucket, per row.")
    written: Bytes = Field(0, description="Into the bucket, per row.")
    batch_size: Few | None = Field(None, description="Rows of a call.")
    num_cpus: Quantity | None = Field(None, description="Of a task or actor; Ray's by default.")
    num_gpus: Quantity = Field(0.0, description="Likewise.")
    concurrency: Few | tuple[Few, Few] | None = Field(
        None, description="Tasks or actors at once; of actors also the fewest and the most."
    )
    actors: bool = Field(False, description="A callable class, whose instances are actors.")
    setup: Seconds = Field(0.0, description="An actor's constructor.")
    max_concurrency: Few = Field(1, description="Calls of an actor side by side.")
    width: Annotated[float, Field(ge=1, le=10_000)] = Field(
        1.0, description="Threads a call keeps busy."
    )
    cv: Share = Field(0.0, description="How much tasks differ: coefficient of variation.")


class AllToAllSection(Section):
    """``random_shuffle``, ``sort``, ``repartition``, ``aggregate``: all rows before the first."""

    kind: Literal["random_shuffle", "sort", "repartition", "aggregate"] = Field(
        description="Which."
    )
    partitions: Few | None = Field(None, description="Blocks that come out.")
    map_core_per_byte: Seconds = Field(0.0, description="Of a core, to cut a block: 1ns.")
    merge_core_per_byte: Seconds = Field(
        0.0, description="Of a core, to put one round's parts together, where it is pushed."
    )
    reduce_core_per_byte: Seconds = Field(0.0, description="Of a core, to put one together.")
    map_cpus: Quantity = Field(1.0, description="That a map holds.")
    reduce_cpus: Quantity = Field(1.0, description="That a reduce holds.")
    compressed: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Bytes of what is moved and stored, of one: zstd's."
    )
    fused: bool = Field(
        False,
        description="The read runs in its maps and what follows in its reduces, as where an "
        "application shuffles on Ray Core.",
    )
    rows_out: Quantity = Field(1.0, description="Of an aggregation: rows out of one.")
    bytes_out: Quantity = Field(1.0, description="Of an aggregation: bytes out of one.")
    shuffle: bool = Field(True, description="Of repartition: false only cuts and joins blocks.")


class OperationSection(Section):
    """One operation; exactly one key."""

    map: MapSection | None = Field(None, description="Rows one by one, or batches of them.")
    all_to_all: Annotated[AllToAllSection, shorthand("kind")] | None = Field(
        None, description="A shuffle, a sort, a repartition or an aggregation."
    )
    limit: PositiveCount | None = Field(None, description="The first so many rows.")

    @model_validator(mode="after")
    def _one(self) -> OperationSection:
        given = [k for k in type(self).model_fields if getattr(self, k) is not None]
        if len(given) != 1:
            raise ValueError("give one of map, all_to_all, limit")
        return self


class ConsumerSection(Section):
    """What is done with the rows."""

    kind: Literal["write", "materialize", "iterate", "train"] = Field(
        "write", description="train: workers on equal shares of a streaming_split."
    )
    step: Seconds | None = Field(None, description="Of a batch: a trainer's, or of the loop.")
    model: ModelSection | None = Field(None, description="Of train, in place of `step`.")
    train: TrainSection | None = Field(
        None, description="The training job whose steps are predicted, as of a scenario of its own."
    )
    batch_size: Few | None = Field(
        None, description="Rows; with `train`, what a step of it takes on one worker."
    )
    prefetch_batches: Annotated[int, Field(ge=0, le=10_000)] = Field(
        1, description="As of iter_batches()."
    )
    drop_last: bool = Field(False, description="As of iter_batches().")
    local_shuffle_buffer_size: Count = Field(0, description="As of iter_batches().")
    collate: Seconds = Field(0.0, description="Of a core, per row: format, collate, copy.")
    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] = Field(1, description="Trainers.")
    cpus: Quantity = Field(1.0, description="Of a trainer.")
    gpus: Quantity = Field(0.0, description="Of a trainer.")
    strategy: Literal["DEFAULT", "SPREAD"] = Field(
        "DEFAULT", description="How trainers are placed: near each other, or over all nodes."
    )
    epochs: Few = Field(1, description="Of training.")
    equal: bool = Field(True, description="Of streaming_split.")

    @model_validator(mode="after")
    def _consistent(self) -> ConsumerSection:
        if (self.model is None) != (self.train is None):
            raise ValueError("model and train go together")
        if self.train is not None:
            if self.kind != "train":
                raise ValueError(f"a model is trained by kind: train, not {self.kind}")
            for key in ("step", "batch_size"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} is predicted from model and train; remove it")
            if self.train.workers is not None:
                raise ValueError("train.workers is workers here; remove it")
        return self


class DataSection(Section):
    """A dataset of Ray Data by numbers, and who takes its rows."""

    source: SourceSection = Field(description="Where rows come from.")
    operations: list[OperationSection] = Field(
        default_factory=list, description="What is done with them, in order."
    )
    consumer: Annotated[ConsumerSection, shorthand("kind")] = Field(
        default_factory=ConsumerSection, description="Who takes them."
    )
    materialize: bool = Field(
        False, description="ds.materialize() first: epochs then read blocks that are there."
    )
    context: dict[str, Any] = Field(
        default_factory=dict,
        description="Settings of ray.data.DataContext by Ray's names, such as "
        "{target_max_block_size: 64MiB}.",
    )
    bucket: str | None = Field(None, description="Where files are: s3, gcs, azure-blob.")
    connections: Few = Field(10, description="Side by side, of each read or write of the bucket.")
