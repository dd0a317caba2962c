"""``torch.utils.data.DataLoader`` in a training worker: what batches look like, and what they take.

Real counterpart: ``torch/utils/data/dataloader.py``. The first batches are really made, by the
program's own dataset and collate function, in the worker itself. When ``ALIKE`` of them had equal
shapes, further batches of as many samples are copies of their shapes, and the dataset is not asked.

The host's model: a batch costs what its making has let pass on the virtual clock (``time.sleep``,
``raysim.rayapi.compute.charge``), and collating copies its bytes at ``COLLATE_BYTES_PER_S``; the
step's prediction has it, on the training process or side by side in ``num_workers`` others. A
batch that is not pinned waits for the stream, and the host for its copy, but those that Ray's
``prepare_data_loader`` copies ahead (``auto_transfer``).

Not modelled: start of loader processes, their memory, the file system behind a dataset. What the
really made batches take passes once more in the steps that use them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _DatasetKind

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.shapes.known import META
from raysim.rayapi.train.summary import COLLATE_BYTES_PER_S
from raysim.tracing.operators import tensors
from raysim.training.compiler.compile import Feed

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
ALIKE = 2
"""Batches in a row of equal shapes before the dataset is asked no more."""


def batches(loader: DataLoader[Any], steps: Steps) -> Iterator[Any]:
    """One pass over a loader."""
    if loader._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001  (as its own iterators ask)
        yield from _timed(loader, _iterable(loader), steps)
    else:
        yield from _timed(loader, _mapped(loader), steps)


def _mapped(loader: DataLoader[Any]) -> Iterator[Any]:
    """Of a dataset with indices."""
    seen: dict[int, _Seen] = {}
    if loader.batch_size is None and loader.batch_sampler is None:
        for index in loader.sampler:
            yield loader.collate_fn(loader.dataset[index])
        return
    for indices in loader._index_sampler:  # noqa: SLF001  (as above)
        known = seen.get(len(indices))
        if known is not None and known.times >= ALIKE:
            yield known.again()
            continue
        found = _Seen(loader.collate_fn(_fetch(loader.dataset, indices)))
        if known is not None and known.shapes == found.shapes:
            found.times = known.times + 1
        seen[len(indices)] = found
        yield found.batch


class _Seen:
    """A batch that was really made, and how many in a row had its shapes."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.times = 1
        with _C.DisableTorchFunction():
            self._leaves, self._tree = tree_flatten(batch)
            self.shapes = [
                (t.shape, t.dtype) if isinstance(t, torch.Tensor) else None for t in self._leaves
            ]

    def again(self) -> Any:
        """Another of its shapes."""
        with _C.DisableTorchFunction():
            return tree_unflatten([_like(leaf) for leaf in self._leaves], self._tree)


def _fetch(dataset: Any, indices: Any) -> Any:
    together = getattr(dataset, "__getitems__", None)
    return together(indices) if together else [dataset[i] for i in indices]


def _iterable(loader: DataLoader[Any]) -> Iterator[Any]:
    dataset: IterableDataset[Any] = loader.dataset  # type: ignore[assignment]
    if loader.batch_size is None:
        for sample in dataset:
            yield loader.collate_fn(sample)
        return
    held: list[Any] = []
    for sample in dataset:
        held.append(sample)
        if len(held) == loader.batch_size:
            yield loader.collate_fn(held)
            held = []
    if held and not loader.drop_last:
        yield loader.collate_fn(held)


def _timed(loader: DataLoader[Any], made: Iterator[Any], steps: Steps) -> Iterator[Any]:
    """Batches, with what they cost noted for the steps that use them."""
    fiber, mode, each_s = this_fiber(), steps.mode, 0.0
    feeds: dict[tuple[int, float], Feed] = {}
    while True:
        begin_ns = fiber_ns(fiber)
        mode.on_host = True
        try:
            batch = next(made)
        except StopIteration:
            return
        finally:
            mode.on_host = False
        took_ns = fiber_ns(fiber) - begin_ns
        if took_ns:
            each_s = took_ns / 1e9
        with _C.DisableTorchFunction():
            size_bytes = sum(t.nbytes for t in tensors(batch))
        steps.feed = feeds.get((size_bytes, each_s))
        if steps.feed is None:
            steps.feed = feeds[size_bytes, each_s] = _feed(loader, size_bytes, each_s)
        yield batch


def _feed(loader: DataLoader[Any], size_bytes: int, each_s: float) -> Feed:
    cost_s = each_s + size_bytes / COLLATE_BYTES_PER_S
    ahead = getattr(loader, "raysim_ahead", False)
    feed = Feed(copy_bytes=size_bytes, pageable=not (loader.pin_memory or ahead))
    if loader.num_workers:
        return replace(feed, loader_s=cost_s / loader.num_workers)
    return replace(feed, host_s=cost_s)


def _like(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=META)
    return leaf
