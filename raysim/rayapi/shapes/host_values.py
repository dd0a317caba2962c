"""Functions of values that the script has on the CPU: the short way past a worker's mode.

Real counterpart: torch's own functions of integers (positions drawn, token ids cut out and
stacked), hundreds of which a hand-written ``get_batch`` calls for every batch. Nothing of them is
on a GPU, no gradient goes through them, and what they take is decided by shapes alone; so that
they run as they are, and are priced once for each shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_T = torch.Tensor
_ENDS = (int, float, slice, type(None), type(...))
"""What an index or operand may be beside tensors; no function here takes longer for its value."""
_INDEX = _T.__getitem__
_BY_SHAPES = frozenset([
    _INDEX, _T.__index__, _T.__int__, _T.__float__, _T.__bool__, _T.item, _T.tolist, _T.numpy,
    _T.__len__, _T.size, _T.dim, _T.numel, _T.unbind, _T.view, _T.reshape,
    _T.add, _T.sub, _T.mul, _T.__rsub__, _T.eq, _T.ne, _T.lt, _T.le, _T.gt, _T.ge,
    torch.from_numpy, torch.stack, torch.cat,
])  # fmt: skip


def key_of_values(func: Any, args: Sequence[Any]) -> Any:
    """What tells such a call from others that take another time; None: it is none."""
    if func not in _BY_SHAPES:
        return None
    found: list[Any] = [func]
    for arg in args:
        part = _key(arg)
        if part is None:
            return None
        found.append(part)
    if func is _INDEX and not _is_plain(args[1]):
        return None
    return tuple(found)


def _key(arg: Any) -> Any:
    if isinstance(arg, torch.Tensor):
        plain = type(arg) is _T and not arg.is_meta and not arg.requires_grad
        return (arg.shape, arg.dtype) if plain else None
    if isinstance(arg, tuple | list):
        parts = tuple(map(_key, arg))
        return None if None in parts else parts
    if isinstance(arg, _ENDS) or type(arg).__module__ == "numpy":
        return type(arg)
    return None


def _is_plain(index: Any) -> bool:
    """Whether how much it picks is decided by its shape: numbers and slices, or integers alone."""
    if isinstance(index, torch.Tensor):
        return index.dtype != torch.bool
    parts = index if isinstance(index, tuple) else (index,)
    return all(isinstance(part, _ENDS) for part in parts)
