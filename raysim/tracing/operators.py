"""What one ATen operator of eager PyTorch costs: kind, FLOPs, elements moved, shape, kernels.

FLOPs are those of ``torch.utils.flop_counter`` (products, convolutions, attention; nothing else).
Elements moved are what the operator reads and writes of *activations*, in elements of the compute
dtype; parameters and what does not grow with the batch are left to the caller to leave out.
Kernels are CUDA's: one per operator, but for the few in ``_KERNELS``.

Not modelled: cuDNN workspaces, kernels that CUDA picks by shape, split-K reductions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from raysim.models.shapes import BatchNorm, Collective, Convolution, LayerNorm, Recurrent
from raysim.models.table import Attention, Gemm, OperatorKind
from raysim.models.tape import JOINED, SORTED
from raysim.tracing import indexing
from raysim.tracing.indexing import FILLS, GATHERS, SCATTERS

IsBatch = Callable[[torch.Tensor], bool]
"""Whether a tensor grows with the batch."""

_GROUPED = "_grouped_mm"
"""Rows of several matrices one after the other, each against one of its own (experts)."""
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", _GROUPED})
_CONVOLUTIONS = frozenset({"convolution", "_convolution"})
_NORMS = ("layer_norm", "batch_norm", "group_norm", "rms_norm")
_EMBEDDINGS = frozenset({"embedding", "_embedding_bag"})
_BAGS = frozenset({"_embedding_bag", "_embedding_bag_backward"})
_LOSSES = ("nll_loss", "mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy", "kl_div")
_ROUTING = frozenset({"topk", "sort", "histc", "bincount"})

_FREE = frozenset(
    [
        "_unsafe_view",
        "_reshape_alias",
        "detach",
        "alias",
        "lift_fresh",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "_local_scalar_dense",
        "wait_tensor",
        "_wrap_tensor_autograd",
    ]
)
"""No kernel, although the schema does not say that the result is a view."""

_KERNELS = {
    # aten/src/ATen/native/cuda: EmbeddingBackwardKernel.cu sorts, segments and reduces;
    # layer_norm_kernel.cu has one kernel for dx and one for the weight gradients;
    # Loss.cu zeroes the gradient before it scatters.
    "embedding_dense_backward": 20,  # eight of them are passes of a radix sort
    "_embedding_bag_backward": 20,  # EmbeddingBag.cu: eight of them pass over sorted keys
    "_sparse_coo_tensor_with_dims_and_tensors": 0,
    "native_layer_norm_backward": 2,
    "native_group_norm_backward": 2,
    "nll_loss_backward": 2,
    # SoftMax.cu multiplies gradient and output first.
    "_softmax_backward_data": 2,
    # attention.cpp: softmax, what is -inf, rows that are so all over, zeros in their place.
    "_safe_softmax": 4,
}
_NONE = torch.empty(0)
_MEAN = 1  # as ``EmbeddingBag.cpp`` numbers its modes
_SPARSE_BAG = {False: 1, True: 6}
"""Kernels of a bag's sparse gradient: rows are picked; of means, the bags' sizes are cast, inverted
(a fill, a division) and picked likewise, and the rows scaled."""
_SOFTMAXES = frozenset({"_log_softmax", "_log_softmax_backward_data"})
WARP_SOFTMAX = 1024
"""Longer rows are read for the maximum, the sum and the result; backward's gradient twice."""
_INDEXED = {
    "native_batch_norm": 0.0,
    "native_layer_norm": 0.5,
    "native_layer_norm_backward": 0.5,
    "embedding_dense_backward": SORTED,
}
"""Of kernels that are not elementwise: elements per element of their input."""
TURNED = 4.9
"""What an element costs that is read along another dimension than it is written: 6.8 to 6.9 ps
beyond its traffic (``transpose`` of 2^27 elements on H100, ``elementwise.csv``)."""
INDEXED_FP32 = 0.48
"""Of what indexing an element costs in 16 bits, in fp32, whose traffic hides more of it: broadcasts
of 2^27 elements take 159 us beyond their traffic in bf16 and 76 in fp32 (``elementwise.csv``)."""
_INTERPOLATED = {False: (5.9, 10.5), True: (5.9, 3.9)}
"""Bilinear up-sampling's, of the larger tensor: forward, and backward with its atomic sums; by
whether channels lie last. SegFormer's on H100: 8.9 ps an element, 6.4 back, 15.6 channels first."""
_COPIES = frozenset({"_to_copy", "copy"})
LOOPED = 1.5
"""ATen operators that a group of a looped product costs the host as much as: 1.07 us of 2.13's
loop on a CPU over groups of one row, where an ``mm`` into a given result takes 0.72."""
_SCATTERS = frozenset({"nll_loss_backward", "embedding_dense_backward"})
"""Read nothing as large as what they write; the second one's result is a parameter's gradient."""


@dataclass(slots=True)
class Kept:
    """A storage that autograd keeps; ``key`` identifies it within one trace."""

    key: int
    size_bytes: int
    dtype: torch.dtype
    returned: bool = False
    """Backward does not need it: the model's output holds it."""


@dataclass(slots=True, kw_only=True)
class Call:
    """One forward operator with, later, what it keeps and what its backward does; whole batch."""

    name: str
    kind: OperatorKind
    flops: float = 0.0
    flops_backward: float | None = None
    """None: twice forward."""
    moved: float = 0.0
    indexed: float = 0.0
    """Elements that its kernel reaches by index arithmetic."""
    output: float = 0.0
    kernels: int = 0
    dispatches: int = 1
    """ATen operators: itself, and the views that follow it."""
    gemm: Gemm | None = None
    """Rows of the whole batch."""
    exact: bool = False
    """Of fp32 tensors."""
    narrow: bool = False  # of fp8 ones
    conv: Convolution | None = None
    batch_norm: BatchNorm | None = None
    layer_norm: LayerNorm | None = None
    """Of the whole batch, once its backward has summed."""
    recurrent: Recurrent | None = None
    """Of the whole batch."""
    attention: Attention | None = None
    """Per sample."""
    keeps: list[Kept] = field(default_factory=list)
    waiting: dict[int, int] | None = None
    """Storages of gradients that wait while its backward runs, with their bytes; None: it has not
    run."""
    overwritten: bool = False
    """The gradient of its result is written over that, which it keeps."""
    summed: bool = False
    """Its output's gradient is a sum."""
    moved_backward: float = 0.0
    indexed_backward: float = 0.0
    fixed_backward: float = 0.0
    """Elements that backward moves of weights' gradients, beyond a product's."""
    beside: int = 0
    """Bytes of the largest gradient of a weight that its backward adds to one there is."""
    kernels_backward: int = 0
    products_backward: list[bool] = field(default_factory=list)
    """Of a product, those that backward runs, each: whether it makes an input's gradient."""
    results: dict[int, int] = field(default_factory=dict)
    """Storages that it makes and that grow with the batch, with their bytes."""
    reads: frozenset[int] = frozenset()
    """Storages that it is given."""
    gradients: list[tuple[int | None, int]] = field(default_factory=list)
    """Bytes of what each operator of its backward makes, in order, after those of all gradients
    that are there beside it; None: of the one before."""
    there: list[int] = field(default_factory=list)
    """Bytes of all gradients that are there with each of them."""
    gradient: int | None = None
    """Bytes of the largest of them that is no weight's; None: none was heard of."""
    weight_shapes: tuple[tuple[int, ...], ...] = ()
    """Shapes of its module's own parameters."""
    compiled: bool = False
    """It runs in a region that is given to ``torch.compile``."""
    collectives: list[Collective] = field(default_factory=list)
    """Of its ranks, those of its backward too."""

    @property
    def made(self) -> int:
        """Bytes of its results."""
        return sum(self.results.values())


def aten_name(func: OpOverload) -> str:
    """``mm`` of ``aten.mm.default``, ``add`` of ``aten.add_.Tensor``."""
    name = func._schema.name.rpartition("::")[2]  # noqa: SLF001 (torch's only way to the name)
    return name.rstrip("_") or name


def launches_nothing(func: OpOverload, name: str) -> bool:
    """Views and bare allocations: no kernel, no bytes."""
    if name in _FREE:
        return True
    returned = [r.alias_info for r in func._schema.returns]  # noqa: SLF001
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


def is_exchange(func: OpOverload) -> bool:
    """Whether it is a collective."""
    return func.namespace in {"_c10d_functional", "_dtensor"}


def tensors(tree: object) -> Iterator[torch.Tensor]:
    """Every tensor of arguments or results."""
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def elements(tensor: torch.Tensor, width: int) -> float:
    """Distinct elements of a tensor, as elements of ``width`` bytes; broadcasts count once."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    distinct = math.prod(size for size, stride in sizes if stride or size == 0)
    return distinct * tensor.element_size() / width


def kernels(name: str, args: Sequence[Any], out: object) -> int:
    """CUDA kernels of an operator."""
    if name == "convolution_backward":
        return sum(1 for _ in tensors(out))
    if name in _CONVOLUTIONS:
        return 1 + (args[2] is not None)
    copies = len(made_contiguous(name, args))
    if next(tensors(out), _NONE).is_sparse and name in _BAGS:
        return _SPARSE_BAG[args[8] == _MEAN]
    if name in SCATTERS and isinstance(out, torch.Tensor):
        return indexing.scattered(name, args, out).kernels
    return looped(name, args) or _KERNELS.get(name, 1) + copies


def looped(name: str, args: Sequence[Any]) -> int:
    """Groups of a grouped product that CUDA takes one after the other; 0: one kernel takes all.

    ``cuda/GroupedBlas.cpp`` has a kernel for bf16 alone; ``GroupedMMUtils.h`` calls ``mm`` in a
    loop for fp32 (which experts run in under autocast, whose lists have no grouped product) and
    fp16, and first waits for the groups' ends.
    """
    if name != _GROUPED or all(t.dtype == torch.bfloat16 for t in args[:2]):
        return 0
    a, b = args[:2]
    if a.dim() == b.dim():
        return int(args[2].shape[0]) if a.dim() == 2 else 0
    return int(max(a, b, key=torch.Tensor.dim).shape[0])


def moved(name: str, args: Any, out: object, *, width: int, counts: IsBatch) -> float:
    """Elements of ``width`` bytes read and written, over tensors for which ``counts`` holds."""
    by_index = _by_index(name, args, out, counts)
    if by_index is not None:
        return by_index.moved_bytes / width
    read = sum(elements(t, width) for t in tensors(args) if counts(t))
    copied = sum(2 * elements(t, width) for t in made_contiguous(name, args) if counts(t))
    written = sum(elements(t, width) for t in tensors(out) if counts(t))
    made = next(tensors(out), _NONE)
    if made.is_sparse:  # rows are picked, and of means scaled
        passes = 0 if name not in _BAGS else 4 if args[0][8] == _MEAN else 2
        return copied + passes * elements(made._values(), width)  # noqa: SLF001
    if name in _BAGS:
        return written + _looked_up(args) * 4 / width
    if name in FILLS:
        return written
    if name in GATHERS:
        return 2 * written
    if name in _SCATTERS:
        return written or 2 * read
    if name == "convolution_backward":
        return _convolution_backward(args, out, width)
    if name == "native_layer_norm_backward":
        # The second kernel reads the gradient and the input again.
        return written + 2 * read + copied
    if name == "_safe_softmax":  # softmax; -inf as bytes; all of a row; the softmax, copied
        return 2 * read + 3 * written + sum(2 * t.numel() / width for t in tensors(out))
    if name == "_softmax_backward_data":  # a product of both, which the second kernel reads
        return 2 * (read + written)
    if name in _SOFTMAXES and _width(out) > WARP_SOFTMAX:
        return 3 * read + written if name == "_log_softmax" else 1.5 * read + written
    return read + written + copied


def _by_index(name: str, args: Any, out: object, counts: IsBatch) -> indexing.Cost | None:
    """Of a gather or a scatter; ``args`` are positional ones with or without others."""
    if name not in GATHERS | SCATTERS or not isinstance(out, torch.Tensor):
        return None
    if not any(counts(t) for t in tensors((args, out))):
        return indexing.Cost(0.0, 0.0, 1)
    given = args[0] if len(args) == 2 and isinstance(args[1], dict) else args
    return (indexing.gathered if name in GATHERS else partial(indexing.scattered, name))(given, out)


def made_contiguous(name: str, args: object) -> list[torch.Tensor]:
    """Inputs of a layer norm (``layer_norm_kernel.cu``), rows of sparse gradients that are not."""
    if not name.startswith(("native_layer_norm", "_sparse_coo_tensor")):
        return []
    return [t for t in tensors(args) if t.dim() > 1 and not t.is_contiguous()]


def _looked_up(args: object) -> float:
    """Elements of all rows that a bag's sums are over."""
    table, indices = list(tensors(args))[:2]
    return float(indices.numel() * table.shape[-1])


def _width(out: object) -> int:
    """Of the last dimension of what is written."""
    return next((t.shape[-1] for t in tensors(out) if t.dim()), 0)


def indexed(name: str, args: Any, out: object, *, counts: IsBatch) -> float:
    """Elements beside whose traffic a kernel pays for index arithmetic (``Operator.indexed``).

    An elementwise kernel does where an operand is broadcast, strided otherwise than the result, or
    of another type; products, gathers and reductions do not.
    """
    made = next((t for t in tensors(out) if counts(t)), None)
    by_index = _by_index(name, args, out, counts)
    if by_index is not None:
        return by_index.indexed
    if made is None and next(tensors(out), _NONE).is_sparse:
        return 0.0
    if name in _BAGS:
        return SORTED * _looked_up(args) if "backward" in name else 0.0
    if name.startswith("upsample_bi"):
        large = max((t for t in tensors((args, out)) if t.dim() == 4), key=torch.Tensor.numel)
        return _INTERPOLATED[lies_channels_last(large)]["backward" in name] * large.numel()
    if name in _INDEXED:
        source = next((t for t in tensors(args) if counts(t)), made)
        copies = [t for t in made_contiguous(name, args) if counts(t)]
        own = _INDEXED[name] * source.numel() if source is not None else 0.0
        return own + sum(TURNED * t.numel() for t in copies)
    if made is None or name in _PRODUCTS | FILLS | GATHERS | _SCATTERS | _CONVOLUTIONS | _SOFTMAXES:
        return 0.0
    given = [t for t in tensors(args) if t.dim() and t.numel() > 1]
    if any(t.numel() > made.numel() for t in given):  # a reduction
        return 0.0
    if name == "cat":
        return JOINED * made.numel()
    # A kernel takes a mask of bytes as such (``needs_dynamic_casting``), but for a copy.
    given += [made]
    alike = all(t.shape == made.shape and t.stride() == made.stride() for t in given)
    types = {t.dtype for t in given if t.dtype != torch.bool or name in _COPIES}
    if alike and len(types) < 2:
        return 0.0
    whole = [t for t in given if t.shape == made.shape and 0 not in t.stride()]
    if any(_along(t) != _along(made) for t in whole):
        return TURNED * made.numel()
    return (INDEXED_FP32 if types == {torch.float32} else 1.0) * made.numel()


def _along(tensor: torch.Tensor) -> int:
    """The dimension whose neighbours lie side by side; -1: none."""
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    return next((i for i, (size, step) in enumerate(sizes) if step == 1 and size > 1), -1)


def _convolution_backward(args: object, out: object, width: int) -> float:
    """The input's and the weight's gradient pass over gradient and input, the bias's over one."""
    grad, source = list(tensors(args))[:2]
    small, large = elements(grad, width), elements(source, width)
    assert isinstance(out, tuple), "convolution_backward returns three tensors or None"
    data, weight, bias = (t is not None for t in out)
    return (data + weight) * (small + large) + bias * small


def flops(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: object) -> float:
    """``torch.utils.flop_counter``'s formula, 0 where it has none; grouped products it lacks."""
    if aten_name(func) == _GROUPED:
        a, b = args[:2]
        return float(2 * a.shape[-2] * a.shape[-1] * b.shape[-1])
    formula = flop_registry.get(func.overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula is not None else 0.0


def sparse_rows(name: str, args: Sequence[Any]) -> int:
    """Rows of the sparse gradient that a look-up makes; 0: it makes none."""
    place = {"embedding": 4, "_embedding_bag": 5}.get(name)
    return args[1].numel() if place is not None and len(args) > place and args[place] else 0


def is_known(name: str) -> bool:
    """Whether its kernels and bytes are known by its name."""
    whole = kind_of(name, in_loss=False, norm_module=False) not in {"elementwise", "loss"}
    return whole or name in _KERNELS or name in _INDEXED or name in GATHERS | SCATTERS | FILLS


def is_product(name: str) -> bool:
    """Whether it is a matrix product."""
    return name in _PRODUCTS


def kind_of(name: str, *, in_loss: bool, norm_module: bool) -> OperatorKind:
    """The table's word for an operator; a loss function or a norm module decides over the name."""
    if name in _PRODUCTS:
        return "gemm"
    if name in _CONVOLUTIONS:
        return "conv"
    if name in _EMBEDDINGS:
        return "embedding"
    if in_loss or name.startswith(_LOSSES):
        return "loss"
    if norm_module or any(norm in name for norm in _NORMS):
        return "norm"
    return "routing" if name in _ROUTING else "elementwise"


def product_shape(
    name: str, args: Sequence[Any], out: object, *, batch: int, counts: IsBatch
) -> Gemm | None:
    """The matrix product an operator runs, with rows of the whole batch; None if it runs none.

    The side that does not grow with the batch is the weight. A batched product of two activations
    (eager attention) has one group per head; one with stacked weights has one per expert.
    """
    if name in _CONVOLUTIONS:
        return _convolution_shape(args, out)
    if name not in _PRODUCTS:
        return None
    a, b = args[1:3] if name in {"addmm", "baddbmm"} else args[:2]
    if name == _GROUPED:  # forward: [rows, k] x [experts, k, n]
        return Gemm(rows=float(a.shape[0]), n=b.shape[-1], k=a.shape[-1], groups=b.shape[0])
    groups = a.shape[0] if a.dim() == 3 else 1
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if counts(b) and not counts(a):
        m, n = n, m
    rows = float(groups * m)
    if groups > 1 and counts(a) and counts(b):
        groups = max(1, round(groups / batch))
    return Gemm(rows=rows, n=n, k=k, groups=groups)


def convolution(name: str, args: Sequence[Any]) -> Convolution | None:
    """What its product does not say of a convolution; None: it is none."""
    if name not in _CONVOLUTIONS:
        return None
    source, weight, strides = args[0], args[1], args[3]
    dims = weight.dim() - 2
    return Convolution(
        taps=math.prod(weight.shape[2:]),
        steps=math.prod(strides) if len(strides) == dims else strides[0] ** dims,
        transposed=bool(args[6]),
        biased=args[2] is not None,
        channels_last=lies_channels_last(source),
    )


def batch_norm(name: str, args: Sequence[Any]) -> BatchNorm | None:
    """Channels and memory format of one in training; None: it is none."""
    if name != "native_batch_norm" or not args[5]:
        return None
    source = args[0]
    return BatchNorm(channels=source.shape[1], channels_last=lies_channels_last(source))


def layer_norm(name: str, args: Sequence[Any]) -> LayerNorm | None:
    """Rows and columns of one whose weights have gradients; None: it is none."""
    if name != "native_layer_norm_backward" or not any(args[7][1:]):
        return None
    width = math.prod(args[2])
    return LayerNorm(rows=args[1].numel() / max(1, width), width=width)


def lies_channels_last(tensor: torch.Tensor) -> bool:
    """Whether it is in ``torch.channels_last``, and not in both formats at once."""
    if tensor.dim() not in {4, 5} or tensor.is_contiguous():
        return False
    last = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=last)


def laid_out(func: OpOverload, args: Sequence[Any], out: Any) -> Any:
    """The result as cuDNN lays it out, channels last if an operand is; meta's kernels never do."""
    name = aten_name(func)
    given = args[:2] if name in _CONVOLUTIONS else args[1:3]
    if name not in _CONVOLUTIONS | {"convolution_backward"}:
        return out
    if not any(lies_channels_last(t) for t in given):
        return out

    def last(t: torch.Tensor) -> torch.Tensor:
        form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(t.dim())
        return t if form is None else t.contiguous(memory_format=form)

    return tree_map_only(torch.Tensor, last, out)


def _convolution_shape(args: Sequence[Any], out: object) -> Gemm:
    """Implicit GEMM: one row per output position and group, one column per output channel."""
    assert isinstance(out, torch.Tensor), "a convolution returns one tensor"
    source, weight, transposed, groups = args[0], args[1], bool(args[6]), int(args[8])
    kernel = math.prod(weight.shape[2:])
    positions = source if transposed else out
    rows = float(positions.shape[0] * math.prod(positions.shape[2:]) * groups)
    if transposed:  # weight is [in, out / groups, kernel...]
        return Gemm(
            rows=rows, n=weight.shape[1] * kernel, k=weight.shape[0] // groups, groups=groups
        )
    return Gemm(rows=rows, n=weight.shape[0] // groups, k=weight.shape[1] * kernel, groups=groups)
