"""Running a dataset: in the process that asks, or in a coordinator that feeds several.

Real counterpart: ``_internal/plan.py``, ``_internal/iterator/{iterator_impl,
stream_split_iterator}.py``. Blocks that a program keeps are dropped with the last dataset of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.data.columns import joined, to_batch
from raysim.rayapi.data.context import DataContext
from raysim.rayapi.data.functions import Reads
from raysim.rayapi.data.iterator import DataIterator
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.fibers import HUB
from raysim.rayapi.library_code import play, session_here
from raysim.raycore.ids import NodeID, hex_id
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import TaskError
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.data import defaults, specs
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.consumers import Consumed, drain
from raysim.raylibs.data.executor import available_cpus, execution_of
from raysim.raylibs.data.iterate import Batching, BatchIterator, DriverStream
from raysim.raylibs.data.plan import plan_of
from raysim.raylibs.data.split import SplitShard, shard_of, streaming_split
from raysim.raylibs.data.stages import ExchangeStage
from raysim.raylibs.data.stats import ExecutionStats, stats_of
from raysim.raylibs.train.datasets import TrainDataset

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset


# ---- what processes of a run know together -------------------------------------------------------


@dataclass(kw_only=True)
class _Known:
    datasets: list[Dataset] = field(default_factory=list)
    shards: dict[tuple[Any, ...], SplitShard] = field(default_factory=dict)
    """By coordinator, share and process."""


def _known_here() -> _Known:
    found: _Known = session_here().libraries.setdefault("data", _Known())
    return found


def number_of(dataset: Dataset) -> int:
    """Of one that is sent somewhere."""
    datasets = _known_here().datasets
    for number, each in enumerate(datasets):
        if each is dataset:
            return number
    datasets.append(dataset)
    return len(datasets) - 1


def known(number: int) -> Dataset:
    """What was sent."""
    return _known_here().datasets[number]


# ---- settings and plans --------------------------------------------------------------------------


def settings() -> defaults.DataContext:
    """Of an execution that begins now."""
    return DataContext.get_current().settings()


def estimated_blocks(dataset: Dataset) -> int:
    """That it will have, as its plan estimates."""
    cpus = play(lambda _: available_cpus())
    spec = dataset._spec.then(specs.AllToAll(kind="random_shuffle"))  # noqa: SLF001  (its own)
    last = plan_of(spec, dataset.context.settings(), cpus)
    return [n.stage.partitions for n in last if isinstance(n.stage, ExchangeStage)][-1]


# ---- in the process that asks --------------------------------------------------------------------


class Whole:
    """All of a dataset, for whoever iterates over it."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def open(self, batching: Batching) -> _Pass:
        """Begin a pass."""
        spec, context = self.dataset._spec, self.dataset.context.settings()  # noqa: SLF001  (its own)
        core = this_core(this_fiber())
        executor = play(lambda core: execution_of(core, spec, context, core.env.sim.rng))
        self.dataset.ran = executor
        return _Pass(
            executor, BatchIterator(core, DriverStream(executor), batching, executor.context)
        )


class _Pass:
    """A ``Reader`` of an execution in the same process."""

    def __init__(self, executor: Any, batches: BatchIterator) -> None:
        self._executor = executor
        self._batches = batches

    def next_batch(self) -> Script:
        """As ``Reader``."""
        return (yield from self._batches.next_batch())

    def leave(self) -> Script:
        """As ``Reader``."""
        self._executor.stop()
        yield from self._batches.close()


def drained(
    dataset: Any, kept: list[Block] | None, then: specs.Operation | None = None
) -> tuple[Consumed, ExecutionStats]:
    """Run it, and what comes ``then``, to its end; blocks are kept, or dropped as they come."""
    spec, context = dataset._spec, dataset.context.settings()  # noqa: SLF001  (its own)
    spec = spec if then is None else spec.then(then)

    def script(core: CoreProcess) -> Script:
        executor = yield from execution_of(
            core, spec, context, core.env.sim.rng, has_consumer=False
        )
        return (yield from drain(executor, kept)), stats_of(executor)

    answer, stats = play(script)
    if isinstance(answer, TaskError):
        raise_error(exception_of(answer, ""))
    return answer, stats


class _Kept:
    """Blocks that datasets of a process hold."""

    def __init__(self, core: CoreProcess, blocks: list[Block]) -> None:
        self._core = core
        self._blocks = blocks

    def __del__(self) -> None:
        for block in self._blocks:
            if block.ref is not None:
                HUB.drop(self._core, self._core.remove_local_reference, block.ref.object_id)


def materialized(dataset: Dataset) -> tuple[specs.Source, Any, ExecutionStats]:
    """All blocks as objects, what holds them, and how they were made."""
    blocks: list[Block] = []
    _, stats = drained(dataset, blocks)
    held = _Kept(this_core(this_fiber()), [b for b in blocks if b.owned])
    return source_of(tuple(b._replace(owned=False) for b in blocks)), held, stats


def source_of(blocks: tuple[Block, ...]) -> specs.Source:
    """Of blocks that are there."""
    if not blocks:
        nothing = Reads(session=session_here(), name="Input", make=lambda _begin, _end: {})
        return specs.Source(name="Input", rows=0, row_bytes=0.0, hook=nothing)
    rows = sum(b.rows for b in blocks)
    size_bytes = sum(b.size_bytes for b in blocks)
    return specs.Source(name="Input", rows=rows, row_bytes=size_bytes / max(rows, 1), blocks=blocks)


def frame(dataset: Any) -> Any:
    """All rows as one ``pandas.DataFrame``."""
    batches = dataset.iter_batches(batch_size=None, batch_format=None)
    return to_batch(joined(batches), "pandas")


# ---- between several -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """One consumer's part of a dataset; any process may have it."""

    index: int
    shares: int
    coordinator: ActorHandle
    context: Any
    dataset: Any

    def open(self, batching: Batching) -> SplitShard:
        """Begin a pass, together with all others."""
        core = this_core(this_fiber())
        shards = _known_here().shards
        key = self.coordinator.actor_id, self.index, core.me.worker_id
        shard = shards.get(key)
        if shard is None:
            shard = shards[key] = shard_of(
                core, self.coordinator, self.index, batching, self.context
            )
        shard.batching = batching
        return shard


def shares(
    dataset: Dataset, n: int, *, equal: bool, hints: list[str] | None
) -> list[Share]:  # fmt: skip
    """``streaming_split``: its coordinator is on the caller's node."""
    nodes = None if hints is None else tuple(_node(hint) for hint in hints)
    script = split(dataset, n, equal=equal, hints=nodes, context=dataset.context.settings())
    made: list[Share] = play(lambda _: script)
    return made


def split(
    dataset: Dataset, n: int, *, equal: bool, hints: tuple[NodeID, ...] | None,
    context: defaults.DataContext,
) -> Script:  # fmt: skip
    """A script that makes the shares; called by a program, played by whoever."""
    coordinating = streaming_split(
        dataset._spec, specs.Split(n=n, equal=equal, locality_hints=hints or ()), context,  # noqa: SLF001  (its own)
        session_here().sim.rng,
    )  # fmt: skip

    def made() -> Script:
        coordinator = yield from coordinating
        if isinstance(coordinator, TaskError):
            return coordinator
        return [Share(i, n, coordinator, context, dataset) for i in range(n)]

    return made()


def for_ranks(dataset: Dataset, *, is_split: bool, locality: bool) -> TrainDataset:
    """A dataset as the workers of a trainer are given it."""
    return TrainDataset(
        dataset=dataset._spec, context=dataset.context.settings(), streams=session_here().sim.rng,  # noqa: SLF001  (its own)
        is_split=is_split, locality=locality,
    )  # fmt: skip


def iterator_of(
    dataset: Dataset, coordinator: ActorHandle | None, index: int, count: int
) -> DataIterator:
    """A rank's: of a share, or of all if nobody coordinates."""
    if coordinator is None:
        return DataIterator(Whole(dataset))
    return DataIterator(Share(index, count, coordinator, dataset.context.settings(), dataset))


def _node(name: str) -> NodeID:
    """Of a node's id as ``ray.nodes()`` has it."""
    nodes = session_here().env.nodes
    for node_id in range(len(nodes)):
        if hex_id("node", node_id) == name:
            return node_id
    raise ValueError(f"no node has the id {name}")
