"""What operators that go by indices move, and how much longer they take than their bytes.

Real counterparts, of ``aten/src/ATen/native/cuda``: ``ScatterGatherKernel.cu`` (a row of a gather
is a thread block's), ``Indexing.cu`` (``index_add_`` adds by atomics; ``index_put_`` that
accumulates sorts its indices first), ``FillKernel.cu``. What is written into a tensor at indices
reads and writes there alone, not the whole tensor; out of place, the tensor is copied first.

Not modelled: how many indices are alike, indices that lie in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from raysim.tracing.storages import key_of

_LIKE = {f"{kind}_like" for kind in ("full", "ones", "rand", "randn", "zeros")}
_DRAWN = {"normal", "random", "uniform"}
FILLS = frozenset({"fill", "full", "new_full", "new_ones", "new_zeros", "ones", "zero", "zeros"})
FILLS |= _LIKE | _DRAWN
"""Write, and read nothing."""
GATHERS = frozenset({"embedding", "gather", "index", "index_select", "nll_loss_forward"})
"""Read no more of their source than they write."""
_ADDS = frozenset({"index_add", "index_reduce", "scatter_add", "scatter_reduce"})
_PUTS = frozenset({"index_copy", "index_fill", "scatter", "index_put", "_unsafe_index_put"})
SCATTERS = _ADDS | _PUTS
ROW_BYTES = 900
"""What a row of a gather is read as long as, at least: 0.60 ns of 1.17 million rows, and of 85,000,
of 160 bytes (``gcn-arxiv`` on an H100), which is one thread block each."""
GATHERED = 3.0
"""Elements (``Operator.indexed``) that one costs whose index is its own, beside its bytes: 6.7 ps
of 12.8 million (``mae-bf16-b128``, the same)."""
ADDED = 4.5
"""Elements (``Operator.indexed``) that one added by an atomic costs beside being read: 7.5 to 7.7
ps of 47 to 299 million fp32 (``gcn-arxiv``, the same)."""
SORTED_ROW, SORTED_PUT = 54.0, 0.8
"""The same of a row that is sorted by its index, and of an element that is then added: 88 us of
1.17 million rows, and 2.4 ps of an element (``gcn-arxiv``, the same)."""
WARP_ELEMENTS = 128
"""What 32 threads add of a row at a time; shorter rows leave some of them idle, but those of a
quarter or less, which have a kernel of their own."""
SORT_KERNELS = 12
"""Of 1.17 million rows: indices, three passes of the radix sort with their sums, the sum itself."""


class Cost(NamedTuple):
    """Of one operator."""

    moved_bytes: float
    indexed: float
    kernels: int


def gathered(args: Sequence[Any], out: torch.Tensor) -> Cost:
    """What a gather costs."""
    size = float(out.numel() * out.element_size())
    rows = _rows(args, out)
    if rows:
        return Cost(2.0 * max(size, ROW_BYTES * rows), 0.0, 1)
    large = [t for t in args if isinstance(t, torch.Tensor) and t.shape == out.shape]
    by_element = any(t.dtype == torch.int64 for t in large)
    return Cost(2.0 * size, GATHERED * out.numel() * by_element, 1)


def _rows(args: Sequence[Any], out: torch.Tensor) -> int:
    """Rows, in pieces of 16 bytes, that a gather takes as such; 0: it goes by elements."""
    source, *indices = (t for t in tree_leaves(args) if isinstance(t, torch.Tensor))
    along = args[1][0] is None if isinstance(args[1], (list, tuple)) else args[1]
    first = isinstance(along, torch.Tensor) or not along
    if len(indices) != 1 or not first or source.dim() < 2 or not source.is_contiguous():
        return 0
    rows = indices[0].numel()
    row_bytes = math.prod(source.shape[1:]) * source.element_size()
    whole = out.numel() == rows * math.prod(source.shape[1:])
    return rows if whole and row_bytes % 16 == 0 else 0


def is_in_place(args: Sequence[Any], out: object) -> bool:
    """Whether what is written at indices is in the tensor that was given."""
    return isinstance(out, torch.Tensor) and key_of(out) == key_of(args[0])


def scattered(name: str, args: Sequence[Any], out: torch.Tensor) -> Cost:
    """What is written into a tensor at indices costs."""
    target = args[0]
    size = target.element_size()
    copied = 0.0 if is_in_place(args, out) else 2.0 * target.numel() * size
    rows, width = _put(name, args)
    number = rows * width
    kernels = 1 + (copied > 0)
    if name in _ADDS:
        return Cost(copied + number * size, ADDED * number, kernels)
    if name.endswith("index_put") and len(args) > 3 and args[3]:
        short = WARP_ELEMENTS / 4 < width < WARP_ELEMENTS
        padded = rows * (WARP_ELEMENTS if short else width)
        own = SORTED_ROW * rows + SORTED_PUT * padded
        return Cost(copied + number * size, own, kernels - 1 + SORT_KERNELS)
    return Cost(copied + 2.0 * number * size, 0.0, kernels)


def _put(name: str, args: Sequence[Any]) -> tuple[float, float]:
    """Rows that are written, and their elements."""
    target = args[0]
    if name.startswith("scatter"):
        return float(args[2].numel()), 1.0
    if not name.endswith("index_put"):
        along = target.shape[args[1]] if target.dim() else 1
        return float(args[2].numel()), target.numel() / max(1, along)
    indices = [i for i in args[1] if i is not None]
    if any(i.dtype in {torch.bool, torch.uint8} for i in indices):
        return float(target.numel()), 1.0
    shape = torch.broadcast_shapes(*(i.shape for i in indices))  # type: ignore[no-untyped-call]
    rows = math.prod(shape)
    kept = [n for n, i in zip(target.shape, args[1], strict=False) if i is None]
    width = math.prod(kept) * math.prod(target.shape[len(args[1]) :])
    return float(rows), float(width)
