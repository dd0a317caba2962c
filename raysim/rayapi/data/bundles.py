"""References to the blocks of a dataset: as they are, or as what pandas and numpy make of them.

Real counterpart: ``to_*_refs`` and ``iter_internal_ref_bundles`` of ``ray/data/dataset.py``.

Not modelled: tables of materialised data are written once more, where Ray hands out the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.data import executions
from raysim.rayapi.data.block import BlockMetadata
from raysim.rayapi.data.columns import Columns, joined, rows_of, sliced, to_batch
from raysim.rayapi.library_code import in_fiber, session_here, state_of
from raysim.rayapi.objects import ObjectRef
from raysim.rayapi.serialization import serialize
from raysim.rayapi.session import Session
from raysim.raycore.scripts import Ask, Driver
from raysim.raylibs.data import specs
from raysim.raylibs.data.blocks import Block, Part

if TYPE_CHECKING:
    from raysim.rayapi.data.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """A hook: blocks as values that ``ray.get`` understands."""

    session: Session
    name: str
    value: Callable[[Columns], Any]

    def __call__(self, parts: list[Part]) -> Ask:
        """One value of all that the task has."""

        def main() -> Any:
            whole = joined(sliced(p.content, p.start, p.start + p.rows) for p in parts)
            payload = serialize(self.value(whole))
            return [(payload.data, rows_of(whole), payload.size_bytes)]

        def begin(d: Driver) -> Any:
            return in_fiber(state_of(self.session, d.process), main, self.name).begin(d)

        return Ask(begin)


@dataclass(frozen=True)
class BlockEntry:
    """One block of a bundle."""

    ref: ObjectRef
    metadata: BlockMetadata


@dataclass(frozen=True)
class RefBundle:
    """``RefBundle``: blocks that travel together."""

    blocks: tuple[BlockEntry, ...]

    @property
    def block_refs(self) -> list[ObjectRef]:
        """References to them."""
        return [entry.ref for entry in self.blocks]

    def num_rows(self) -> int:
        """Of all."""
        return sum(entry.metadata.num_rows or 0 for entry in self.blocks)

    def size_bytes(self) -> int:
        """Of all."""
        return sum(entry.metadata.size_bytes or 0 for entry in self.blocks)


def _bundles(dataset: Dataset, name: str, value: Callable[[Columns], Any]) -> list[RefBundle]:
    hook = _Told(session=session_here(), name=name, value=value)
    blocks: list[Block] = []
    executions.drained(dataset, blocks, specs.Map(name=name, hook=hook))
    core = this_core(this_fiber())
    found = []
    for block in blocks:
        assert block.ref is not None, "a block that was made is an object"
        about = BlockMetadata(num_rows=block.rows, size_bytes=block.size_bytes)
        found.append(RefBundle((BlockEntry(ObjectRef(block.ref, core), about),)))
    return found


def _refs(dataset: Dataset, name: str, value: Callable[[Columns], Any]) -> list[ObjectRef]:
    return [ref for bundle in _bundles(dataset, name, value) for ref in bundle.block_refs]


_table = partial(to_batch, batch_format="pyarrow")
_frame = partial(to_batch, batch_format="pandas")


@program_call
def iter_internal_ref_bundles(dataset: Dataset) -> Iterator[RefBundle]:
    """``Dataset.iter_internal_ref_bundles``; all of them are there before the first is given."""
    return iter(_bundles(dataset, "_block_to_arrow", _table))


@program_call
def to_arrow_refs(dataset: Dataset) -> list[ObjectRef]:
    """``Dataset.to_arrow_refs``: a table of every block."""
    return _refs(dataset, "_block_to_arrow", _table)


@program_call
def to_pandas_refs(dataset: Dataset) -> list[ObjectRef]:
    """``Dataset.to_pandas_refs``: a frame of every block, made by a task each."""
    return _refs(dataset.materialize(), "_block_to_df", _frame)


@program_call
def to_numpy_refs(dataset: Dataset, *, column: str | None = None) -> list[ObjectRef]:
    """``Dataset.to_numpy_refs``: of every block a column, or all by name."""

    def arrays(columns: Columns) -> Any:
        found = to_batch(columns, "numpy")
        return found if column is None else found[column]

    return _refs(dataset.materialize(), "_block_to_ndarray", arrays)
