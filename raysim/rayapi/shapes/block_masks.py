"""``flex_attention`` in training workers, and how much of the scores its block mask leaves.

Real counterpart: ``torch/nn/attention/flex_attention.py`` (2.13). What it takes is decided by the
blocks that a mask leaves: a mask function is really asked, on the CPU, for some rows of blocks, of
positions and of those tensors of its closure whose values are known (documents of a batch); masks
that a script makes of blocks itself are counted where their numbers are known.

Not modelled: flex_attention that is not compiled (which keeps all scores), ``score_mod`` and its
gradients, the time that making a mask takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import _disable_current_modes

from raysim.rayapi.shapes.known import META, with_values
from raysim.tracing.attention import VISITED
from raysim.tracing.functions import FLEX

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
_ROWS = 16
"""Rows of blocks that a mask is asked for."""
UNKNOWN = (
    "a block mask of flex_attention whose values nobody knows is taken for a causal one's: half of "
    "all scores"
)


MODULES = (
    "torch.nn.attention.flex_attention", "transformers.integrations.flex_attention",
    "transformers.masking_utils",
)  # fmt: skip
"""That have the functions by their names, once they are there."""


def install(r: Replaced, module: Any) -> None:
    """Attention and the mask, in one of them."""
    for name, ours in (
        ("flex_attention", _flex_attention), ("create_block_mask", _create_block_mask),
    ):  # fmt: skip
        if hasattr(module, name):
            r.around(module, name, ours)
    if hasattr(module, "WrappedFlexAttention"):  # which keeps what it has compiled
        r.set(module.WrappedFlexAttention, "_instance", lambda _: None)


def _flex_attention(
    real: Any, steps: Steps, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    score_mod: Any = None, block_mask: Any = None, scale: float | None = None,
    enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None,
    *, return_aux: Any = None,
) -> Any:  # fmt: skip
    if not (query.is_meta or steps.mode.tracing):
        aux = {} if return_aux is None else {"return_aux": return_aux}
        return real(
            query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse,
            kernel_options, **aux,
        )  # fmt: skip
    if block_mask is not None and not steps.mode.tracing and not _is_known(block_mask):
        steps.say(UNKNOWN)
    token = FLEX.set(True if block_mask is None else block_mask)
    try:
        out = scaled_dot_product_attention(query, key, value, scale=scale, enable_gqa=enable_gqa)
    finally:
        FLEX.reset(token)
    if return_lse or return_aux is not None:
        rows = query.new_empty(query.shape[:-1], dtype=torch.float32)
        return out, rows if return_lse else type(return_aux)(lse=rows, max_scores=rows)
    return out


def _create_block_mask(
    real: Any, steps: Steps, mask_mod: Any, B: int | None, H: int | None, Q_LEN: int,  # noqa: N803
    KV_LEN: int, device: Any = "cuda", BLOCK_SIZE: Any = 128, *more: Any, **options: Any,  # noqa: N803
) -> Any:  # fmt: skip
    """One whose blocks are all kept, and which knows the share of those that are."""
    on_cpu = device is not None and torch.device(device).type == "cpu"
    if on_cpu and not steps.mode.tracing:  # whose compiler's tensors say that they are there
        return real(mask_mod, B, H, Q_LEN, KV_LEN, device, BLOCK_SIZE, *more, **options)
    sides = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else tuple(BLOCK_SIZE)
    rows, columns = -(-Q_LEN // sides[0]), -(-KV_LEN // sides[1])
    key = _kind(mask_mod), B, H, Q_LEN, KV_LEN, sides
    made = steps.shared.masks.get(key)
    if made is None:
        with _C.DisableTorchFunction(), _disable_current_modes():  # whoever traces hears nothing
            counts = torch.empty(B or 1, H or 1, rows, dtype=torch.int32, device=META)
            places = torch.empty(*counts.shape, columns, dtype=torch.int32, device=META)
            made = torch.nn.attention.flex_attention.BlockMask.from_kv_blocks(
                counts, places, counts, places, BLOCK_SIZE=sides, mask_mod=mask_mod,
                seq_lengths=(Q_LEN, KV_LEN),
            )  # fmt: skip
            setattr(made, VISITED, _asked(mask_mod, B or 1, (Q_LEN, KV_LEN), sides))
        steps.shared.masks[key] = made
    return made


def _asked(
    mask_mod: Callable[..., Any], batch: int, lengths: tuple[int, int], sides: tuple[int, ...]
) -> float | None:
    """Share of the blocks that a mask leaves; None: it reads what nobody knows."""
    (rows, columns), (height, width) = lengths, sides
    blocks, across = -(-rows // height), -(-columns // width)
    some = sorted({round(i * (blocks - 1) / max(1, _ROWS - 1)) for i in range(_ROWS)})
    left = 0
    with suppress(RuntimeError, TypeError, ValueError, IndexError):
        known = _of_known(mask_mod)
        for i, block in enumerate(some):
            q = torch.arange(block * height, min(rows, (block + 1) * height))[:, None]
            kv = torch.arange(columns)[None, :]
            place = torch.tensor(i % batch), torch.tensor(0)
            seen = known(*place, q, kv).expand(len(q), columns).any(0)
            left += int(torch.nn.functional.pad(seen, (0, across * width - columns))
                        .view(across, width).any(1).sum())  # fmt: skip
        return left / (len(some) * across)
    return None


def _kind(held: Any) -> Any:
    """What tells a mask from others: its code, and what it holds but for values of tensors."""
    if isinstance(held, FunctionType):
        cells = (c.cell_contents for c in held.__closure__ or ())
        return held.__code__, *map(_kind, cells), *map(_kind, held.__defaults__ or ())
    if isinstance(held, tuple | list):
        return tuple(map(_kind, held))
    return held if isinstance(held, int | float | str) else type(held)


def _of_known(function: Any) -> Any:
    """The same function over the values of what its closure holds."""
    if not isinstance(function, FunctionType):
        return function
    cells = tuple(_cell(c.cell_contents) for c in function.__closure__ or ())
    names = {n: _value(function.__globals__[n]) for n in function.__code__.co_names
             if n in function.__globals__}  # fmt: skip
    made = FunctionType(
        function.__code__, {**function.__globals__, **names}, function.__name__,
        function.__defaults__, cells,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _cell(held: Any) -> Any:
    value = _value(held)
    return (lambda: value).__closure__[0]  # type: ignore[index]


def _value(held: Any) -> Any:
    """What it stands for; functions inside functions too (``and_masks``)."""
    if isinstance(held, tuple | list):
        return type(held)(map(_value, held))
    if isinstance(held, FunctionType) and held.__closure__:
        return _of_known(held)
    return with_values(held) if isinstance(held, torch.Tensor) else held


def _is_known(block_mask: Any) -> bool:
    """Whether the script knows how many blocks each row has."""
    if getattr(block_mask, VISITED, None) is not None:
        return True
    counts = [block_mask.kv_num_blocks, block_mask.full_kv_num_blocks]
    return not any(with_values(t).is_meta for t in counts if t is not None)
