"""What a dataset is: a source and the operators on it, with what each row costs.

Real counterpart: ``python/ray/data/_internal/logical/operators``. Frozen and lazy: nothing runs
until a consumer asks. Costs are numbers of the workload; with ``rayapi`` a stage has a ``Hook``
that runs the user's own functions instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysim.raycore.scripts import Ask
from raysim.raylibs.data.blocks import Block, Part

Hook = Callable[[list[Part]], Ask]
"""Runs user code on a task's input, in the task's own process; answers a list of (content, rows,
bytes), its output blocks in order, or the ``TaskError`` it raised. A read task gets a part for each
task of the source's that it does: its own number, the first of the rows and how many."""


Slices = Callable[[Any, int, int], Any]
"""Of a content, the rows from one number to another: what blocks are cut with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where rows come from: files that read tasks read, or blocks that exist."""

    name: str = "Read"
    rows: int
    row_bytes: float
    """In memory, as blocks hold them: what Ray estimates and what reading yields."""
    files: int = 0
    """Read tasks at most, one a file; 0: any number of read tasks, as of a range."""
    stepped: bool = False
    """Read tasks have equal rows and the last one the rest, as of ``ray.data.range``."""
    file_rows: tuple[int, ...] = ()
    """Of each file, where they differ: a read task has whole ones."""
    task_rows: tuple[int, ...] = ()
    """Of each read task, of a source that says which there are, as Parquet's bins of row groups."""
    core_s_per_row: float = 0.0
    io_s_per_row: float = 0.0
    """Waiting for storage, without a core."""
    stored_row_bytes: float = 0.0
    """Fetched from a bucket over the node's network, per row; 0: nothing."""
    override_num_blocks: int | None = None
    hook: Hook | None = None
    """Makes the rows, of a program that looks at them."""
    slices: Slices | None = None
    """Of what it makes."""
    blocks: tuple[Block, ...] = ()
    """Of materialised data: its blocks, and nothing is read."""
    again: Callable[[], Source] | None = None
    """As of a ``Map``: files in another order."""
    counted: bool = True
    """How many rows there are is known before they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """``map_batches``, ``map``, ``filter``, ``flat_map``, ``add_column``, ``write``."""

    name: str = "MapBatches"
    core_s_per_row: float = 0.0
    core_s_per_byte: float = 0.0
    """Of input."""
    gpu_s_per_row: float = 0.0
    """On the actor's GPU, its process waiting."""
    io_s_per_row: float = 0.0
    rows_out_per_row: float = 1.0
    row_bytes_out: float | None = None
    """None: rows keep their size."""
    bytes_out_frac: float = 1.0
    """Of rows that keep their size but for this, as compression leaves them."""
    stored_row_bytes: float = 0.0
    """Fetched from a bucket, per row."""
    written_row_bytes: float = 0.0
    """Stored into a bucket, per row."""
    batch_size: int | None = None
    """Rows a call gets; small blocks are put together up to it."""
    changes_rows: bool = False
    """``filter``, ``flat_map``: rows come and go, as they do not in what Ray takes a map for."""
    num_cpus: float | None = None
    """None: 1 of a task, or of an actor without GPU; 0 of an actor with one."""
    num_gpus: float = 0.0
    concurrency: int | tuple[int, int] | None = None
    """Of tasks, at most so many at once; of actors, the pool's size or its bounds."""
    actors: bool = False
    """A callable class: its instances are actors."""
    setup_s: float = 0.0
    """An actor's constructor: imports, the model's weights, its way to the GPU."""
    construct: Callable[[], Ask] | None = None
    """The constructor of a program's class, or the ``TaskError`` it raised."""
    max_concurrency: int = 1
    """Calls an actor runs side by side."""
    width: float = 1.0
    """Threads a call keeps busy."""
    cv_frac: float = 0.0
    """How much tasks differ: the coefficient of variation of their times, lognormal."""
    hook: Hook | None = None
    slices: Slices | None = None
    """Of what the hook makes; None: that stays whole."""
    block_rows: int = 0
    """``repartition(target_num_rows_per_block=)``: its blocks have so many rows at most."""
    exact: bool = False
    """Its tasks get multiples of these rows, so that all blocks but the last are full."""
    hook_of: Callable[[list[Any]], Hook] | None = None
    """Makes the hook, of what the stage before it has sampled."""
    remote_args: Mapping[str, float] = field(default_factory=dict)
    """Custom resources."""
    again: Callable[[], Any] | None = None
    """Makes it anew for every execution, of what is drawn at random."""

    @property
    def cpus(self) -> float:
        """What a task or an actor holds."""
        if self.num_cpus is not None:
            return self.num_cpus
        return 0.0 if self.actors and self.num_gpus else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AllToAll:
    """``random_shuffle``, ``sort``, ``repartition``, ``groupby().aggregate``."""

    kind: Literal["random_shuffle", "sort", "repartition", "aggregate"]
    partitions: int | None = None
    """Blocks, or rather partitions, that come out; None: as many as blocks came in."""
    map_core_s_per_byte: float = 0.0
    """To cut a block by its rows' destinations; of a sort, to sort it too."""
    merge_core_s_per_byte: float = 0.0
    """Of a push-based shuffle: to put one round's parts together."""
    reduce_core_s_per_byte: float = 0.0
    """To put all parts of a partition together."""
    bytes_out_frac: float = 1.0
    """Of an aggregation."""
    rows_out_frac: float = 1.0
    shuffle: bool = True
    """``repartition(shuffle=False)`` only cuts blocks and puts them together."""
    compressed_frac: float = 1.0
    """Bytes of a shard after zstd."""
    map_hook: Hook | None = None
    """Runs user code on a map's input; answers one (content, rows, bytes) for every partition."""
    sample_hook: Hook | None = None
    """Answers what is to be known of a block before the maps begin."""
    map_hook_of: Callable[[list[Any]], Hook] | None = None
    """Instead of ``map_hook``: makes it, of all that was sampled."""
    samples: bool = True
    """Of a sort: boundaries are looked for; False where they are said."""
    reduce_hook: Hook | None = None
    drops_empty: bool = False
    """Of an aggregation: a partition without rows makes no block, and mostly no task."""
    map_cpus: float = 1.0
    reduce_cpus: float = 1.0
    fused: bool = False
    """The read before it runs in its maps and what follows in its reduces, as in applications that
    shuffle on Ray Core (Exoshuffle); Ray Data's own run apart."""
    again: Callable[[], Any] | None = None
    """As of a ``Map``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reorder:
    """``randomize_block_order``: all blocks, then one after the other as ``order`` says."""

    order: Callable[[int], Sequence[int]]
    """Of how many there are."""
    again: Callable[[], Any] | None = None
    """As of a ``Map``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """``limit``."""

    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Zip:
    """``zip`` with one other: rows side by side."""

    other: Dataset
    core_s_per_byte: float = 0.0
    hook: Hook | None = None
    """Gets the blocks of one part of this dataset, then those of the other's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """``join`` with one other: rows of equal keys meet in a partition."""

    other: Dataset
    partitions: int
    left_hook: Hook | None = None
    """Cuts blocks of this dataset; answers one (content, rows, bytes) for every partition."""
    right_hook: Hook | None = None
    """The same of the other's."""
    reduce_hook: Hook | None = None
    """Gets all pieces of a partition, of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """``union``: all of this, and of the others; with weights ``mix``: some of each in turn."""

    others: tuple[Dataset, ...]
    weights: tuple[float, ...] = ()
    """Shares of rows: of this dataset, then of the others."""
    to_shortest: bool = False
    """A mix ends with the first that ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """``streaming_split``: always the last."""

    n: int
    equal: bool = False
    locality_hints: tuple[int, ...] = ()
    """The node of each consumer."""


Drawn = Map | AllToAll | Reorder
"""What may be drawn at random."""
Operation = Drawn | Limit | Union | Zip | Join | Split


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A source and what is done with it."""

    source: Source
    operations: tuple[Operation, ...] = ()

    def then(self, *operations: Operation) -> Dataset:
        """More of them."""
        return replace(self, operations=(*self.operations, *operations))

    def anew(self) -> Dataset:
        """For one execution: what is drawn at random is drawn."""
        source = self.source if self.source.again is None else self.source.again()
        return Dataset(source=source, operations=tuple(_anew(o) for o in self.operations))

    @property
    def ordered(self) -> bool:
        """Whether a sort or a zip is in it: Ray then keeps all blocks in order."""
        return any(
            isinstance(o, Zip)
            or (isinstance(o, Join) and o.other.ordered)
            or (isinstance(o, AllToAll) and o.kind == "sort" and not o.fused)
            or (isinstance(o, Union) and any(other.ordered for other in o.others))
            for o in self.operations
        )


def _anew(operation: Operation) -> Operation:
    if isinstance(operation, Drawn):
        return operation if operation.again is None else operation.again()
    if isinstance(operation, Zip | Join):
        return replace(operation, other=operation.other.anew())
    if isinstance(operation, Union):
        return replace(operation, others=tuple(other.anew() for other in operation.others))
    return operation
