"""How many there are of what nobody knows: results whose shape depends on values.

Real counterparts: ``torch.nonzero``, ``where`` of a condition alone, ``bincount``, ``unique``,
torchvision's ``nms``. Everything passes that is not known not to: every place of a mask, but of one
of zeros in which so many places were set (samplers of detectors) only so many; every box survives.
Values that nobody knows are all one (``unique``), and none exceeds what ``minlength`` says.

Not modelled: how many there are in a real run, which is told; masks that index are all of theirs.
"""

from __future__ import annotations

from typing import Any

import torch

from raysim.rayapi.shapes.known import to_device
from raysim.tracing.operators import tensors
from raysim.tracing.values import CONSTANT

_T = torch.Tensor
_MOST = "raysim_most"
"""Of a mask: so many places are set, or fewer."""
_PLACES = frozenset([torch.nonzero, torch.argwhere, torch.where, _T.nonzero, _T.argwhere])
_ZEROS = frozenset([torch.zeros, torch.zeros_like, _T.new_zeros])
_UNIONS = frozenset([_T.__or__, _T.__ior__, torch.bitwise_or, torch.logical_or, torch.cat])
_LIKE = frozenset([_T.to, _T.bool, _T.view, _T.reshape, _T.flatten, torch.flatten])
_BINS = frozenset([torch.bincount, _T.bincount])
_ALIKE = frozenset([torch.allclose, torch.equal, _T.allclose, _T.equal])
"""What a script asserts of numbers that nobody knows: it holds."""
_UNIQUE = frozenset(["unique", "unique_consecutive"])


def asks(func: Any, args: Any) -> bool:
    """Whether it asks which places of something are set that nobody knows."""
    if func not in _PLACES or len(args) != 1:
        return False
    return bool(args[0].is_meta) and not hasattr(args[0], "raysim_values")


def picks(func: Any, args: Any) -> bool:
    """Whether a mask's places are written with gradients, which backward picks by them."""
    return func is _T.__setitem__ and any(t.requires_grad for t in tensors((args[0], args[2:])))


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """A function of torch, or what is taken in its place."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        found = without_kernel(func, args, kwargs)
        if found is None:
            raise
        return found


def without_kernel(func: Any, args: Any, kwargs: Any) -> Any:
    """What a function makes that torch has no shapes for; None: it is no such function."""
    name = getattr(func, "__name__", "")
    given = next(tensors(args), None)
    if given is None or not given.is_meta:
        return None
    if func in _PLACES and len(args) == 1:
        found = _all_places(given)
        as_tuple = func is torch.where or kwargs.get("as_tuple")
        return found if as_tuple else torch.stack(found, 1)
    if func in (_T.__getitem__, _T.__setitem__):
        found = func(args[0], picked(args[1]), *args[2:])
        return args[0] if found is None else found
    if func in _BINS:
        weights = kwargs.get("weights", args[1] if len(args) > 1 else None)
        bins = kwargs.get("minlength", args[2] if len(args) > 2 else 0)
        kind = torch.int64 if weights is None else torch.float64
        return torch.empty(max(1, bins), dtype=kind, device=given.device)
    if func in _ALIKE:
        return True
    if name in _UNIQUE:
        return _all_one(given, kwargs)
    if name == "nms":
        return torch.empty(len(given), dtype=torch.int64, device=given.device)
    return None


def _all_places(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    known = getattr(mask, "raysim_values", None)
    if known is not None:
        return tuple(map(to_device, known.nonzero(as_tuple=True)))
    most = getattr(mask, _MOST, mask.numel())
    one = torch.empty(most, dtype=torch.int64, device=mask.device)
    return (one,) * max(1, mask.dim())


def picked(index: Any) -> tuple[Any, ...]:
    """An index without masks."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(p for part in parts for p in _picked(part))


def _picked(part: Any) -> tuple[Any, ...]:
    """An index; the places of a mask; a slice with numbers, 0 where nobody knows them."""
    if isinstance(part, slice):
        return (slice(*map(_number, (part.start, part.stop, part.step))),)
    is_mask = isinstance(part, torch.Tensor) and part.dtype == torch.bool
    return _all_places(part) if is_mask else (part,)


def _number(bound: Any) -> Any:
    if not isinstance(bound, torch.Tensor):
        return bound
    known = getattr(bound, "raysim_values", bound)
    return 0 if known.is_meta else int(known)


def _all_one(given: torch.Tensor, asked: Any) -> Any:
    found = [given.new_empty(1)]
    if asked.get("return_inverse"):
        found.append(torch.empty(given.shape, dtype=torch.int64, device=given.device))
    if asked.get("return_counts"):
        found.append(torch.empty(1, dtype=torch.int64, device=given.device))
    return tuple(found) if len(found) > 1 else found[0]


def counted(func: Any, args: Any, out: Any) -> Any:
    """A result; how many places are set is handed on.

    A number that a model draws to choose by (a size of pictures) is drawn.
    """
    if func is _T.__setitem__:
        if hasattr(args[0], _MOST):
            _set_at(args[0], args[1])
    elif func in _ZEROS:
        setattr(out, _MOST, 0)
    elif func is _T.uniform_ and out.is_meta and out.numel() == 1 and not out.requires_grad:
        out.raysim_values = torch.empty(out.shape, dtype=out.dtype, device="cpu")
        setattr(out, CONSTANT, func(out.raysim_values, *args[1:]))
    elif func in _UNIONS or func in _LIKE:
        found = [getattr(t, _MOST, None) for t in tensors(args)]
        if found and None not in found:
            setattr(out, _MOST, min(out.numel(), sum(filter(None, found))))
    return out


def _set_at(mask: torch.Tensor, index: Any) -> None:
    """Places are set: those of a tensor of them, or any."""
    is_list = isinstance(index, torch.Tensor) and index.dtype != torch.bool
    more = index.numel() if is_list else mask.numel()
    setattr(mask, _MOST, min(mask.numel(), getattr(mask, _MOST) + more))
