"""Tensors of the GPU whose values are known: token ids, labels, masks, counters.

Real counterpart: the values themselves. Integers that came from the host, and a few numbers of a
script's own, are remembered beside their shapes; what is computed of such alone is known too, so
that ``labels[i].item()``, ``logits[labels != -100]`` or ``loss_sum / count`` of a script find what
they find in a real run. ``tracing.values`` does the same for operators of a traced module.

Random numbers that are compared with one are drawn then (``torch.rand(n) < 0.5``).

Not modelled: what a model or many floating-point numbers have made (``MOST_FLOATS``), and what many
integers make (``MOST_FOLLOWED``).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from raysim.tracing.operators import tensors
from raysim.tracing.storages import PLAIN
from raysim.tracing.values import CONSTANT

META = torch.device("meta")
MOST_KNOWN = 2**22
"""Elements of integer tensors whose values are kept beside the GPU's copy."""
MOST_FOLLOWED = 2**19
"""Of those that are computed with: what a step asks of more would take this machine too long."""
MOST_FLOATS = 2**8
"""Elements of floating-point tensors that a script counts or measures with."""
_COUNTING = frozenset([
    "arange", "as_tensor", "asarray", "full", "ones", "scalar_tensor", "tensor", "zeros",
])  # fmt: skip
"""Whose values are known on the GPU too: counters, positions."""
_DRAWN = frozenset(["randint", "randperm"])
"""Likewise: any draw will do, the same every time (labels and masks made on the GPU)."""
_GIVEN = frozenset(["as_tensor", "asarray", "tensor"])
"""Make a tensor of values that they are given."""
_RANDOM = frozenset(["rand", "rand_like", "randn", "randn_like"])
_COMPARES = frozenset(["__ge__", "__gt__", "__le__", "__lt__", "ge", "gt", "le", "lt"])
"""Of many random numbers with one: a mask, which is drawn then."""
MASKED = (
    "a mask whose values nobody knows (x[mask]) is taken to let everything pass: time and memory "
    "of what follows are the most that they can be"
)
_CONSTANT = frozenset([
    "full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like",
])  # fmt: skip
"""Take a shape, no values."""
_LEAVES = frozenset([bool, float, int, str, type(None), torch.dtype, torch.device])
_NOT_IN_PLACE = frozenset(["__index__", "__int__", "__invert__", "__iter__"])


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the GPU, which has a shape; small integers are remembered beside it."""
    if tensor.is_meta:
        return tensor
    made = torch.empty_like(tensor, device=META, requires_grad=False)
    if tensor.numel() <= (MOST_FLOATS if _is_inexact(tensor) else MOST_KNOWN):
        made.raysim_values = tensor.detach()  # type: ignore[attr-defined]
    return made


def _is_inexact(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def mixed(args: Any, kwargs: Any) -> bool:
    """Whether some tensors have values and some have not."""
    return len({t.is_meta for t in tensors((args, kwargs))}) > 1


def with_values(tree: Any) -> Any:
    """The same with tensors whose values are known in the place of their copies."""
    kind = type(tree)
    if kind in PLAIN:
        return getattr(tree, "raysim_values", tree)
    if kind in _LEAVES:
        return tree
    if kind is tuple or kind is list:  # asked for very often: ``tree_map`` takes ten times as long
        return kind(map(with_values, tree))
    return tree_map_only(torch.Tensor, lambda t: getattr(t, "raysim_values", t), tree)


def some_known(args: Any) -> bool:
    """Whether a function is given tensors of the GPU whose values are known: a quick look."""
    for arg in args[:2]:
        first = arg[0] if isinstance(arg, tuple | list) and arg else arg
        if hasattr(first, "raysim_values") or (
            isinstance(first, torch.Tensor) and first.dtype == torch.bool and not first.is_meta
        ):
            return True
    return False


def of_values(func: Any, args: Any, kwargs: Any) -> tuple[Any] | None:
    """What a function makes of tensors that are all known; None: some are not, or are large."""
    given = list(tensors((args, kwargs)))
    if any(t.is_meta and not hasattr(t, "raysim_values") for t in given):
        return None
    if sum(t.numel() for t in given) > MOST_FOLLOWED:
        return None
    try:
        return (func(*with_values(args), **with_values(kwargs)),)
    except (RuntimeError, TypeError):  # asks for more than values: a device, a graph
        return None


def follow(func: Any, args: Any, kwargs: Any, out: Any, *, in_place: bool) -> None:
    """Values of what a function has made of known tensors, beside its shape."""
    if in_place:
        changed = args[0]
        values = getattr(changed, "raysim_values", None)
        if values is None:
            return
        changed.raysim_values = values.clone()  # those of the host stay
        if of_values(func, args, kwargs) is None:
            del changed.raysim_values
        return
    made = [t for t in tensors(out) if t.is_meta]
    if any(_is_inexact(t) and t.numel() > MOST_FLOATS for t in made):
        return
    for tensor, real in zip(made, tensors(of_values(func, args, kwargs)), strict=False):
        if tensor.shape == real.shape and tensor.dtype == real.dtype:
            tensor.raysim_values = real  # type: ignore[attr-defined]


def hand_on_values(before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
    """What the same function makes of the same values is known as it was: labels of a loss."""
    values = getattr(before, "raysim_values", None)
    if values is not None and now.is_meta and now.shape == before.shape:
        now.raysim_values = values  # type: ignore[attr-defined]
    return now


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (name[2] == "i" and name not in _NOT_IN_PLACE)
    return name.endswith("_")


def places(index: Any) -> tuple[Any, ...]:
    """An index whose masks are the places that they let through, and whose numbers are numbers."""
    found: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        known = getattr(part, "raysim_values", part)
        if not isinstance(known, torch.Tensor) or known.is_meta:
            found.append(part)
        elif known.dtype == torch.bool:
            found += [to_device(places) for places in known.nonzero(as_tuple=True)]
        elif not known.dim():
            found.append(int(known))
        else:
            found.append(part)
    return tuple(found)


def lets_pass(index: Any) -> bool:
    """Whether an index has masks that nobody knows: they are taken to let everything pass."""
    masks = [
        part for part in (index if isinstance(index, tuple) else (index,))
        if isinstance(part, torch.Tensor) and part.is_meta and part.dtype == torch.bool
        and not hasattr(part, "raysim_values") and part.numel() <= MOST_KNOWN
    ]  # fmt: skip
    for mask in masks:
        mask.raysim_values = torch.ones(mask.shape, dtype=torch.bool)  # type: ignore[attr-defined]
    return bool(masks)


def counted(func: Any, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
    """A tensor that was just made, with its values if it counts something."""
    most = MOST_FLOATS if _is_inexact(out) else MOST_FOLLOWED
    name = func.__name__
    counts = name in _COUNTING | _DRAWN and out.is_meta and out.numel() <= most
    if counts and not out.requires_grad and not any(t.is_meta for t in tensors(args)):
        draw = {"generator": torch.Generator().manual_seed(0)} if name in _DRAWN else {}
        out.raysim_values = func(  # type: ignore[attr-defined]
            *args, **{**kwargs, "device": "cpu", **draw}
        )
    elif name in _RANDOM and out.is_meta:
        out.raysim_random = name  # type: ignore[attr-defined]
    return out


def with_numbers(args: Any) -> Any:
    """Of a list that a tensor is made of: numbers instead of tensors, nan or 0 of unknown ones."""
    if args and isinstance(args[0], list | tuple) and any(t.is_meta for t in tensors(args[0])):
        return (tree_map_only(torch.Tensor, _numbers, args[0]), *args[1:])
    return args


def _numbers(tensor: torch.Tensor) -> Any:
    values = getattr(tensor, "raysim_values", None if tensor.is_meta else tensor)
    if values is None:
        values = torch.full(tensor.shape, math.nan if _is_inexact(tensor) else 0)
    return values.tolist()


def kept_constant(func: Any, args: Any, kwargs: Any, out: torch.Tensor) -> torch.Tensor:
    """Of a list or an array that a traced module has put on the GPU: a mask, positions."""
    small = out.is_meta and not _is_inexact(out) and out.numel() <= MOST_FOLLOWED
    if func.__name__ in _GIVEN and small and not any(t.is_meta for t in tensors(args)):
        setattr(out, CONSTANT, func(*args, **{**kwargs, "device": "cpu"}))
    return out


def constant(func: Any, name: str, args: Any, kwargs: Any, out: Any) -> None:
    """The values of what took another tensor's shape alone (a mask of ones), or is taken so."""
    if name == "isfinite":
        _taken_finite(out)
    elif name in _CONSTANT and isinstance(out, torch.Tensor) and out.is_meta:
        _of_a_shape(func, args, kwargs, out)
    elif name in _RANDOM and isinstance(out, torch.Tensor) and out.is_meta:
        out.raysim_random = name  # type: ignore[attr-defined]
    elif name in _COMPARES and isinstance(args[-1], int | float):
        _of_random(name, args, out)


def _of_random(name: str, args: Any, out: torch.Tensor) -> None:
    """Any draw will do, the same every time."""
    kind = getattr(args[0], "raysim_random", None)
    if kind is None or out.numel() > MOST_FOLLOWED:
        return
    draw = getattr(torch, kind.removesuffix("_like"))
    numbers = draw(out.shape, generator=torch.Generator().manual_seed(0))
    out.raysim_values = getattr(torch, name.strip("_"))(  # type: ignore[attr-defined]
        numbers, args[1]
    )


def _taken_finite(out: Any) -> None:
    """As a loss that nobody knows is taken to be."""
    if not isinstance(out, torch.Tensor) or not out.is_meta or hasattr(out, "raysim_values"):
        return
    if out.numel() <= MOST_FOLLOWED:
        out.raysim_values = torch.ones(out.shape, dtype=torch.bool)  # type: ignore[attr-defined]


def _of_a_shape(func: Any, args: Any, kwargs: Any, out: torch.Tensor) -> None:
    most = MOST_FLOATS if _is_inexact(out) else MOST_FOLLOWED
    if out.numel() <= most and not out.requires_grad:
        like = torch.empty_like(args[0], device="cpu")
        given = (like, *with_values(args[1:]))
        out.raysim_values = func(  # type: ignore[attr-defined]
            *given, **{**with_values(kwargs), "device": "cpu"}
        )
