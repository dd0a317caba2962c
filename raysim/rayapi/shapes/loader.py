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
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from raysim.perf.host import FRESH_THREAD_BYTES_PER_S
from raysim.perf.host_loops import THREAD_BYTES_PER_S, Work, received
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.shapes.alike import Made, Seen, shapes_of, told
from raysim.rayapi.shapes.cpu_work import priced, stays_on_cpu
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
        self.threads = 1 if workers else steps.host_threads
        self._known: dict[int, Work] = {}
        self._made: set[int] = set()
        self.made: dict[Any, Made] = {}
        """Batches of a dataset that is this rank's own."""

    def make(self, samples: int, run: Callable[[], Any], *, again: bool = False) -> Any:
        """A batch that is really made; ``again``: another rank has made one."""
        newly = samples not in self._made
        self._made.add(samples)
        if samples in self._known or (newly and not again):
            out = run()
        else:
            fiber, begin_ns = this_fiber(), fiber_ns(this_fiber())
            out, work, foreign = priced(self.steps.mode, run, self.threads)
            if foreign and fiber_ns(fiber) == begin_ns:  # nor has the script said what it takes
                self._say(foreign)
                work += _copied(tensors(out))
            self._known[samples] = _rounded(work)
        self.found(samples, newly=newly and again)
        return out

    def take(self, samples: int, work: Work | None) -> None:
        """A batch that another rank has made, at its price."""
        newly = samples not in self._made
        self._made.add(samples)
        if work is not None:
            self._known.setdefault(samples, work)
        self.found(samples, newly=newly)

    def known(self, samples: int) -> Work | None:
        """Of a batch of so many, if one has been priced."""
        return self._known.get(samples)

    def found(self, samples: int, *, newly: bool = False) -> None:
        """Another of so many; what nobody has priced is as others by the sample.

        ``newly``: the first here, whose price is known of another rank alone.
        """
        known = None if newly else self._known.get(samples)
        others = [n for n in self._known if n != samples] if newly else list(self._known)
        if known is None and others:
            most = max(others)
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
    if loader.batch_size is None and loader.batch_sampler is None:
        for index in loader.sampler:
            yield prices.make(1, partial(_one, loader, index))
        return
    looking = _Looking(loader, prices)
    for indices in loader._index_sampler:  # noqa: SLF001  (as above)
        yield looking.batch(indices)


def _one(loader: DataLoader[Any], index: Any) -> Any:
    return loader.collate_fn(loader.dataset[index])


class _Looking:
    """One pass over a loader, which looks at batches until it knows them."""

    def __init__(self, loader: DataLoader[Any], prices: _Prices) -> None:
        self._loader, self._prices = loader, prices
        self._seen: dict[int, Seen] = {}
        """By how many samples they have."""
        kind = told(loader)
        self._key = kind, prices.threads
        self._made: dict[Any, Made] = prices.made if kind is None else prices.steps.shared.batches
        """Batches of other passes, and of other ranks where all have the same."""
        self._alone = False
        """Its first sample is not like theirs."""
        self._first: Any = None
        """Sample of the batch that was made last."""

    def batch(self, indices: Any) -> Any:
        """The next."""
        known = self._seen.get(len(indices))
        if known is not None and known.times >= ALIKE:
            self._prices.found(len(indices))
            return known.again()
        return self._own(indices) if self._alone else self._anyone(indices)

    def _own(self, indices: Any) -> Any:
        known, samples = self._seen.get(len(indices)), len(indices)
        found = Seen(self._prices.make(samples, partial(self._collated, indices)))
        if known is not None and known.shapes == found.shapes:
            found.times = known.times + 1
        self._seen[samples] = found
        return found.batch

    def _anyone(self, indices: Any) -> Any:
        """What another rank or pass has made, or may take."""
        samples, fiber = len(indices), this_fiber()
        begin_ns = fiber_ns(fiber)
        key = (*self._key, samples)
        made = self._made.get(key)
        if made is not None and samples not in self._seen and not self._fits(made, indices):
            self._alone = True
            return self._own(indices)
        if made is not None and made.seen.times >= ALIKE:
            return self._taken(samples, made, begin_ns)
        first_ns = fiber_ns(fiber)
        run = partial(self._collated, indices)
        found = Seen(self._prices.make(samples, run, again=made is not None))
        if made is not None and made.seen.shapes == found.shapes:
            found.times = made.seen.times + 1
        self._made[key] = Made(
            seen=found, sample=shapes_of(self._first), took_ns=fiber_ns(fiber) - first_ns,
            work=self._prices.known(samples),
        )  # fmt: skip
        return self._noted(samples, found)

    def _fits(self, made: Made, indices: Any) -> bool:
        """Whether the first sample here is like its; what a dataset does but once is over then."""
        first = shapes_of(_fetch(self._loader.dataset, indices[:1])[0])
        return bool(first == made.sample)

    def _taken(self, samples: int, made: Made, begin_ns: int) -> Any:
        """One that was made, in the time that it took."""
        fiber = this_fiber()
        left_ns = made.took_ns - (fiber_ns(fiber) - begin_ns)
        if left_ns > 0:
            fiber.sleep(fiber.take_lead() + left_ns)
        self._prices.take(samples, made.work)
        return self._noted(samples, Seen(made.seen.again(), made.seen.times))

    def _noted(self, samples: int, found: Seen) -> Any:
        """It was looked at in this pass."""
        known = self._seen.get(samples)
        times = min(found.times, 1 if known is None else known.times + 1)
        self._seen[samples] = Seen(found.batch, times)
        return found.batch

    def _collated(self, indices: Any) -> Any:
        held = _fetch(self._loader.dataset, indices)
        self._first = held[0]
        return self._loader.collate_fn(held)


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
