"""Data loaders of several ranks, or passes, whose batches are made alike.

Real counterpart: none: each rank of a job makes its own batches. Where what they are made of is
nobody's (pictures that stand for files which are not here, ``rayapi.standins``), it is enough that
one rank makes them: others take its shapes, its values and its price, if dataset, transforms and
``collate_fn`` are told alike here, and a first sample of theirs has the same shapes.

Not modelled: transforms that do something else on each rank, with samples of the same shapes.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from raysim.perf.host_loops import Work
from raysim.rayapi.shapes.known import META

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
MOST_TOLD = 20_000
"""Values of a dataset that are looked at before it is taken to be like no other."""
_MOST_LISTED = 64
"""Members of a list that are told one by one; of longer ones (indices, targets) the number is."""
_PLAIN = (
    int, float, complex, bool, str, bytes, type(None), Enum, CodeType, torch.dtype, torch.device,
)  # fmt: skip


class Seen:
    """A batch that was really made, and how many in a row had its shapes."""

    def __init__(self, batch: Any, times: int = 1) -> None:
        self.batch = batch
        self.times = times
        batch = (
            copy(batch) if isinstance(batch, UserDict) else batch
        )  # who has it may take it apart
        with _C.DisableTorchFunction():
            self._leaves, self._tree = tree_flatten(batch)
        self.shapes = shapes_of(batch)

    def again(self) -> Any:
        """Another of its shapes."""
        with _C.DisableTorchFunction():
            return tree_unflatten([_like(leaf) for leaf in self._leaves], self._tree)


def shapes_of(batch: Any) -> tuple[Any, ...]:
    """Of its tensors, in order; None: no tensor."""
    with _C.DisableTorchFunction():
        leaves, _ = tree_flatten(batch)
        return tuple(
            (t.shape, t.dtype) if isinstance(t, torch.Tensor) else None for t in leaves
        )  # fmt: skip


def _like(leaf: Any) -> Any:
    if isinstance(leaf, UserDict):  # a BatchEncoding of transformers, which no pytree looks into
        made = copy(leaf)
        made.data = {name: _like(value) for name, value in leaf.data.items()}
        return made
    if isinstance(leaf, torch.Tensor) and leaf.is_meta:
        return torch.empty(leaf.shape, dtype=leaf.dtype, device=META)
    return leaf.detach() if type(leaf) is torch.Tensor else leaf  # without what it was marked with


@dataclass(kw_only=True)
class Made:
    """What ranks know together of batches of one kind and size."""

    seen: Seen
    sample: Any
    """Shapes of a sample that went into one."""
    took_ns: int
    """What making one has let pass on the virtual clock."""
    work: Work | None = None
    """Of making the second."""


def told(loader: Any) -> Any:
    """What its batches are made of and how, to be compared; None: of what is the script's own."""
    telling = _Telling()
    try:
        key = telling.tell((loader.dataset, loader.collate_fn))
        hash(key)
    except (_TooMuchError, TypeError, RecursionError):
        return None
    return key if telling.stands else None


class _TooMuchError(Exception):
    """A dataset has more parts than it is worth to look at."""


class _Telling:
    """Of values that datasets and transforms hold."""

    def __init__(self) -> None:
        self.stands = False
        """Something stands for files that are not here."""
        self._told: dict[int, int] = {}
        """Places of objects, by their identity: what is met again is told once."""

    def tell(self, value: Any) -> Any:
        """Of one, whatever it is."""
        if isinstance(value, _PLAIN):
            return type(value), value
        if isinstance(value, type):
            return value.__module__, value.__qualname__
        if id(value) in self._told:
            return "again", self._told[id(value)]
        self._told[id(value)] = len(self._told)
        if len(self._told) > MOST_TOLD:
            raise _TooMuchError
        if isinstance(value, torch.Tensor):
            return "tensor", tuple(value.shape), value.dtype
        if isinstance(value, tuple | list):
            return type(value), self._all(value)
        if isinstance(value, Mapping):
            return type(value), self._all(value), self._all(value.values())
        return self._object(value)

    def _all(self, values: Any) -> Any:
        if len(values) > _MOST_LISTED:
            return len(values)
        return tuple(self.tell(v) for v in values)

    def _object(self, value: Any) -> Any:
        if isinstance(value, MethodType):
            return "method", self.tell(value.__self__), self.tell(value.__func__)
        if isinstance(value, partial):
            return "partial", *map(self.tell, (value.func, value.args, value.keywords))
        if isinstance(value, FunctionType):
            cells = [self._cell(cell) for cell in value.__closure__ or ()]
            return value.__code__, *cells, self.tell(value.__defaults__)
        kind = type(value)
        own = getattr(value, "__dict__", None)
        if own is None:
            return kind.__module__, kind.__qualname__, getattr(value, "shape", None)
        self.stands |= "raysim_known" in own or _is_fake(kind)
        names = sorted(own)
        return kind.__module__, kind.__qualname__, *names, *(self.tell(own[n]) for n in names)

    def _cell(self, cell: Any) -> Any:
        try:
            return self.tell(cell.cell_contents)
        except ValueError:  # nothing in it yet
            return None


def _is_fake(kind: type) -> bool:
    """torchvision's own stand-in."""
    return kind.__name__ == "FakeData" and kind.__module__.startswith("torchvision.")
