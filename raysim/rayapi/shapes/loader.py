"""``torch.utils.data.DataLoader`` in a training worker: what batches look like, and what they take.

Real counterpart: ``torch/utils/data/dataloader.py``. The first batches are really made, by the
program's own dataset and collate function, in the worker itself. When ``ALIKE`` of them had equal
shapes, further batches of as many samples are copies of their shapes, and the dataset is not asked.

The host's model: a batch costs what its making has let pass on the virtual clock (``time.sleep``,
``raysim.rayapi.compute.charge``), and what torch's operators and Python's calls in it take
(``shapes.cpu_work``); where those are not known, its bytes at ``COLLATE_BYTES_PER_S``. The step's
prediction has it, on the training process or side by side in ``num_workers`` others, which hand it
over. A batch that is not pinned waits for the stream, and the host for its copy, but those that
Ray's ``prepare_data_loader`` copies ahead (``auto_transfer``).

Not modelled: start of loader processes, their memory, the file system behind a dataset. What the
really made batches take passes once more in the steps that use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from raysim.perf.host import FRESH_THREAD_BYTES_PER_S
from raysim.perf.host_loops import THREAD_BYTES_PER_S, Work, received
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.shapes.cpu_work import priced, stays_on_cpu
from raysim.rayapi.shapes.known import META
from raysim.rayapi.train.summary import COLLATE_BYTES_PER_S
from raysim.tracing.operators import tensors
from raysim.training.compiler.feed import Feed

if TYPE_CHECKING:
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
ALIKE = 2
"""Batches in a row of equal shapes before the dataset is asked no more."""
_END: Any = object()


def batches(loader: DataLoader[Any], steps: Steps) -> Iterator[Any]:
    """One pass over a loader."""
    prices = loader.__dict__.setdefault("raysim_prices", _Prices(steps, loader.num_workers))
    if loader._dataset_kind == _DatasetKind.Iterable:  # noqa: SLF001  (as its own iterators ask)
        yield from _timed(loader, _iterable(loader, prices), prices)
    else:
        yield from _timed(loader, _mapped(loader, prices), prices)


class _Prices:
    """What batches of a loader take the host, by how many samples they have.

    The second of a size is priced: what a dataset does but once is over by then.
    """

    def __init__(self, steps: Steps, workers: int) -> None:
        self.steps = steps
        self.work: Work | None = None
        """Of the latest batch; None: nobody knows."""
        self._threads = 1 if workers else steps.host_threads
        self._known: dict[int, Work] = {}
        self._made: set[int] = set()

    def make(self, samples: int, run: Callable[[], Any]) -> Any:
        """A batch that is really made."""
        if samples in self._known or samples not in self._made:
            self._made.add(samples)
            out = run()
        else:
            fiber, begin_ns = this_fiber(), fiber_ns(this_fiber())
            out, work, foreign = priced(self.steps.mode, run, self._threads)
            if foreign and fiber_ns(fiber) == begin_ns:  # nor has the script said what it takes
                self._say(foreign)
                work += _copied(tensors(out))
            self._known[samples] = _rounded(work)
        self.found(samples)
        return out

    def found(self, samples: int) -> None:
        """Another of so many; what nobody has priced is as others by the sample."""
        known = self._known.get(samples)
        if known is None and self._known:
            most = max(self._known)
            known = self._known[most] * (samples / most)
        self.work = known

    def _say(self, foreign: frozenset[str]) -> None:
        self.steps.say(
            f"what {' and '.join(sorted(foreign))} compute in a data loader is not known, and "
            "takes no time: only Python's calls and torch's operators do. raysim.charge("
            "seconds=...) where a sample is made says what it takes"
        )


def _copied(batch: Iterable[torch.Tensor]) -> Work:
    with _C.DisableTorchFunction():
        return Work(0.0, sum(t.nbytes for t in batch) / COLLATE_BYTES_PER_S)


def _rounded(work: Work) -> Work:
    """So that one call more or less is no other batch."""
    return Work(float(f"{work.calls_s:.2g}"), float(f"{work.loops_s:.2g}"))


def _mapped(loader: DataLoader[Any], prices: _Prices) -> Iterator[Any]:
    """Of a dataset with indices."""
    seen: dict[int, _Seen] = {}
    if loader.batch_size is None and loader.batch_sampler is None:
        for index in loader.sampler:
            yield prices.make(1, partial(_one, loader, index))
        return
    for indices in loader._index_sampler:  # noqa: SLF001  (as above)
        known = seen.get(len(indices))
        if known is not None and known.times >= ALIKE:
            prices.found(len(indices))
            yield known.again()
            continue
        found = _Seen(prices.make(len(indices), partial(_collated, loader, indices)))
        if known is not None and known.shapes == found.shapes:
            found.times = known.times + 1
        seen[len(indices)] = found
        yield found.batch


def _one(loader: DataLoader[Any], index: Any) -> Any:
    return loader.collate_fn(loader.dataset[index])


def _collated(loader: DataLoader[Any], indices: Any) -> Any:
    return loader.collate_fn(_fetch(loader.dataset, indices))


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


def _iterable(loader: DataLoader[Any], prices: _Prices) -> Iterator[Any]:
    samples: Iterator[Any] = iter(loader.dataset)
    while True:
        batch = prices.make(loader.batch_size or 1, partial(_next, loader, samples))
        if batch is _END:
            return
        yield batch


def _next(loader: DataLoader[Any], samples: Iterator[Any]) -> Any:
    """The next batch, or the next sample where the dataset makes batches."""
    if loader.batch_size is None:
        sample = next(samples, _END)
        return sample if sample is _END else loader.collate_fn(sample)
    held = list(islice(samples, loader.batch_size))
    if not held or (loader.drop_last and len(held) < loader.batch_size):
        return _END
    return loader.collate_fn(held)


def _timed(loader: DataLoader[Any], made: Iterator[Any], prices: _Prices) -> Iterator[Any]:
    """Batches, with what they cost noted for the steps that use them."""
    fiber, steps, each_s = this_fiber(), prices.steps, 0.0
    mode = steps.mode
    feeds: dict[tuple[int, float, Work | None], Feed] = {}
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
            found = list(tensors(batch))
            size_bytes = sum(t.nbytes for t in found)
            stays_on_cpu(found)
        key = size_bytes, each_s, prices.work
        if key not in feeds:
            feeds[key] = _feed(loader, size_bytes, len(found), each_s, prices.work)
        steps.feed = feeds[key]
        yield batch


def _feed(
    loader: DataLoader[Any], size_bytes: int, parts: int, each_s: float, known: Work | None
) -> Feed:
    ahead = getattr(loader, "raysim_ahead", False)
    feed = Feed(copy_bytes=size_bytes, pageable=not (loader.pin_memory or ahead))
    work = Work(0.0, size_bytes / COLLATE_BYTES_PER_S) if known is None else known
    if not loader.num_workers:
        pinned = 2 * size_bytes / THREAD_BYTES_PER_S if loader.pin_memory else 0.0
        return replace(feed, host_s=each_s, host_work=work + Work(0.0, pinned))
    shared = Work(0.0, size_bytes / FRESH_THREAD_BYTES_PER_S)  # memory that is new each time
    return replace(
        feed, loader_s=each_s / loader.num_workers,
        loader_work=(work + shared + received(parts)) * (1 / loader.num_workers),
        host_work=received(parts),
    )  # fmt: skip


def _like(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=META)
    return leaf
