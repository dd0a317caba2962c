"""``ray.data.DataIterator``: batches of a dataset, or of one share of it, made ahead of need.

Real counterpart: ``ray/data/iterator.py``, ``_internal/iterator/*``. Blocks are fetched, cut and
collated by ``raylibs.data``'s batch iterators beside the program's own code, whose time overlaps
with theirs; formatting is without cost, a ``collate_fn`` costs what it declares.

Not modelled: ``iter_tf_batches``, pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from raysim.kernel.rng import Streams
from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.data.collate import DefaultCollateFn, collated
from raysim.rayapi.data.columns import Columns, joined, sliced, to_batch, to_rows
from raysim.rayapi.failures import exception_of, raise_error
from raysim.rayapi.library_code import in_fiber, play
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.scripts import Ask, Script, drive
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.iterate import Batch, Batching


class Reader(Protocol):
    """One pass over somebody's blocks."""

    def next_batch(self) -> Script:
        """A ``Batch``, None at the end, or a TaskError."""

    def leave(self) -> Script:
        """No more is wanted."""


class _Iterable:
    """``_IterableFromIterator``: begins anew each time."""

    def __init__(self, begin: Callable[[], Iterator[Any]]) -> None:
        self._begin = begin

    def __iter__(self) -> Iterator[Any]:
        return self._begin()


class Source(Protocol):
    """What is iterated over."""

    @property
    def dataset(self) -> Any:
        """It, or what it is a share of."""

    def open(self, batching: Batching) -> Reader:
        """Begin a pass."""


_REFUSED = frozenset(
    ["get_context", "iter_jax_batches", "iter_tf_batches", "stats", "to_tf", "to_torch"]
)


class DataIterator:
    """``ray.data.DataIterator``."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def iter_batches(
        self, *, prefetch_batches: int = 1, batch_size: int | None = 256,
        batch_format: str | None = "default", drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None, local_shuffle_seed: int | None = None,
    ) -> Iterable[Any]:  # fmt: skip
        """``iter_batches``."""
        to_batch({}, batch_format)  # whether there is such a format is said at once
        if batch_size == 0:
            return _Iterable(lambda: iter(()))
        said = _batching(
            prefetch_batches, batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        return _Iterable(
            lambda: (to_batch(_columns(b), batch_format) for b in self._batches(said()))
        )

    def iter_rows(self) -> Iterable[dict[str, Any]]:
        """``iter_rows``."""
        said = Batching(batch_size=None)
        return _Iterable(lambda: (row for b in self._batches(said) for row in to_rows(_columns(b))))

    def iter_torch_batches(
        self, *, prefetch_batches: int = 1, batch_size: int | None = 256, dtypes: Any = None,
        device: Any = "auto", collate_fn: Any = None, drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None, local_shuffle_seed: int | None = None,
        pin_memory: bool = False,
    ) -> Iterable[Any]:  # fmt: skip
        """``iter_torch_batches``: tensors, on the training worker's device."""
        del pin_memory
        if collate_fn is not None and dtypes is not None:
            raise ValueError(
                "collate_fn cannot be used with dtypes. You should manually convert the output "
                "Torch tensors to the desired dtype inside collate_fn."
            )
        if batch_size == 0:
            return _Iterable(lambda: iter(()))
        default = DefaultCollateFn(dtypes)
        said = _batching(
            prefetch_batches, batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
        )
        if collate_fn is None:
            return _Iterable(
                lambda: (
                    moved(collated(default, _columns(b)), device) for b in self._batches(said())
                )
            )
        return _Iterable(
            lambda: (
                moved(b.content, device)
                for b in self._batches(said(hook=_collating(collate_fn)))
            )
        )  # fmt: skip

    def _batches(self, batching: Batching) -> Iterator[Batch]:
        reader = self._source.open(batching)
        over = False
        try:
            while True:
                batch = _next(reader)
                over = not isinstance(batch, Batch)
                if isinstance(batch, TaskError):
                    raise_error(exception_of(batch, ""))
                if over:
                    return
                yield batch
        finally:
            if not over:
                _leave(reader)

    def materialize(self) -> Any:
        """``DataIterator.materialize``: all of its batches as a dataset."""
        from raysim.rayapi.data.read import put_blocks  # it imports what imports this

        return put_blocks([_columns(b) for b in self._batches(Batching(batch_size=None))])

    def __repr__(self) -> str:
        """As Ray prints one of a whole dataset."""
        if hasattr(self._source, "index"):
            return super().__repr__()
        return f"DataIterator({self._source.dataset!r})"

    def schema(self) -> Any:
        """``DataIterator.schema``."""
        return self._source.dataset.schema()

    def world_size(self) -> int:
        """Shares there are."""
        return int(getattr(self._source, "shares", 1))

    def __getattr__(self, name: str) -> Any:
        """What Ray has and this class does not."""
        if name not in _REFUSED:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise NotEmulatedError(f"ray.data.{type(self).__name__}.{name}", "iter_batches")


def _next(reader: Reader) -> Any:
    """Of a training worker, its record says that it waits for data."""
    worker = this_fiber().process.training
    if worker is not None:
        worker.waits_for_data()
    batch = play(lambda _: reader.next_batch())
    if worker is not None:
        worker.has_data()
    return batch


def _leave(reader: Reader) -> None:
    """From wherever a generator is closed; nobody waits for it."""
    core = this_core(this_fiber())
    drive(core, lambda _: reader.leave(), lambda _: None)


def _batching(
    prefetch: int, size: int | None, drop_last: bool, buffer_rows: int | None, seed: int | None
) -> Callable[..., Batching]:
    """Of each pass: its own draws."""
    if buffer_rows and size is None:
        raise ValueError("Must specify a batch_size if using a local shuffle.")

    def made(**more: Any) -> Batching:
        streams = this_core(this_fiber()).env.sim.rng if seed is None else Streams(seed)
        return Batching(
            batch_size=size, prefetch_batches=prefetch, drop_last=drop_last,
            local_shuffle_buffer_size=buffer_rows or 0,
            rng=streams("iter_batches") if buffer_rows else None, **more,
        )  # fmt: skip

    return made


def _columns(batch: Batch) -> Columns:
    return joined(sliced(p.content, p.start, p.start + p.rows) for p in batch.parts)


def _collating(function: Any) -> Callable[[Batch], Ask]:
    """A program's ``collate_fn`` in a thread of its own process."""
    state = this_fiber().process

    def hook(batch: Batch) -> Ask:
        return in_fiber(state, lambda: collated(function, _columns(batch)), "collate_fn")

    return hook


def moved(value: Any, device: Any) -> Any:
    """Tensors on a device; ``auto``: the training worker's, else the CPU."""
    if device == "auto":
        worker = this_fiber().process.training
        if worker is None or not worker.gpus:
            return value
        import torch

        device = torch.device("cuda", worker.devices[0])
    if isinstance(value, dict):
        return {key: moved(v, device) for key, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(moved(v, device) for v in value)
    return value.to(device) if hasattr(value, "to") else value
