"""Which kernels inductor fuses a graph to, and what they read and write.

Real counterpart: ``torch/_inductor/scheduler.py``, and what ``lowering.py`` realizes, simplified.
Operators that the partitioner calls fusible have no buffer of their own unless a kernel that is not
fused reads it, the graph returns it, or it is a reduction. What has one joins a kernel whose result
or inputs it reads, if nothing stands between the two: an operator that is not fused, or a sum over
the batch (gradients of biases and norms, statistics of BatchNorm), which needs every row first.
Such a sum shares a kernel with a norm's rows (``mix_order_reduction``); another adds up its parts.

A kernel reads each input once and writes what others read: names and operands of the kernels that
an H100 ran of a compiled Llama are those. Index arithmetic is counted where elements are put
together or elsewhere; casts and broadcasts are free. Not modelled: rows too long for registers,
limits on a kernel's size.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import get_default_op_list

_OPS = get_default_op_list()
_PRODUCTS = frozenset({"aten::mm", "aten::addmm"})
_ACCUMULATE = frozenset({"aten::index_put", "aten::_unsafe_index_put", "aten::scatter_add"})
"""Make gradients of tables."""
_LOOK_UPS = frozenset({"aten::index", "aten::gather", "aten::_unsafe_index", "aten::embedding"})
"""Read no more than they return."""
_RANDOM = "prims::inductor_random"
_CONVOLUTION_BACKWARD = "aten::convolution_backward"
_POINTWISE = frozenset(
    [
        "aten::cat", "aten::constant_pad_nd", "aten::select_scatter", "aten::slice_scatter",
        _RANDOM,
    ]
)  # fmt: skip
"""Lowered to elementwise kernels, beside what the partitioner calls fusible."""
_PUTS_TOGETHER = _POINTWISE - {_RANDOM}
_PRICED = _PRODUCTS | _ACCUMULATE | frozenset(
    [
        "aten::bmm", "aten::baddbmm", "aten::_grouped_mm", "aten::convolution",
        _CONVOLUTION_BACKWARD, "aten::embedding", "aten::embedding_dense_backward",
        "raysim::scaled_dot_product_attention", "raysim::scaled_dot_product_attention_backward",
    ]
)  # fmt: skip
"""Not fused, and as in eager torch."""


@dataclass(slots=True)
class Kernel:
    """One fused kernel, or the two of a sum over the batch."""

    level: int
    """What stands before it, along the longest path."""
    sums: bool = False
    """Over the batch."""
    by_row: bool = False
    """It reduces rows."""
    nodes: list[fx.Node] = field(default_factory=list)
    """Whose results have buffers, in order."""
    read: dict[fx.Node, dict[fx.Node, int]] = field(default_factory=dict)
    """Bytes of each buffer, by the views of it."""
    written: list[int] = field(default_factory=list)
    """Bytes of the buffers that others read."""
    made: list[int] = field(default_factory=list)
    """Of them, those that are no tensor of forward's, overwritten."""
    indexed: int = 0
    """Elements of buffers that are reached by index arithmetic."""

    @property
    def launches(self) -> int:
        """CUDA kernels: another adds up the parts of a sum."""
        return 1 + self.sums

    @property
    def moved_bytes(self) -> int:
        """Read and written."""
        return sum(self.written) + sum(
            min(size_bytes(buffer), sum(views.values())) for buffer, views in self.read.items()
        )


def tensor_of(node: fx.Node) -> torch.Tensor | None:
    """What it makes, unless that is several tensors or none."""
    value = node.meta.get("val")
    return value if isinstance(value, torch.Tensor) else None


def size_bytes(node: fx.Node) -> int:
    """Of its elements, broadcasts once."""
    t = tensor_of(node)
    if t is None:
        return 0
    sizes = zip(t.shape, t.stride(), strict=True)
    return math.prod(size for size, stride in sizes if stride or not size) * t.element_size()


def buffer_of(node: fx.Node) -> fx.Node:
    """The node whose storage it is a view of."""
    while node.op == "call_function":
        parts = node.target is operator.getitem and _OPS.is_view(_first(node))
        if not parts and not (_OPS.is_view(node) and node.target is not operator.getitem):
            break
        node = _first(node)
    return node


def growing(graph: fx.Graph, given: Mapping[str, bool]) -> set[fx.Node]:
    """Nodes whose size is the batch's; ``given`` says it of the inputs, by name."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "placeholder":
            grows = given.get(node.name, True) and size_bytes(node) > 0
        else:
            grows = node.op == "call_function" and _grows(node, found)
        if grows:
            found.add(node)
    return found


def _grows(node: fx.Node, known: set[fx.Node]) -> bool:
    inputs = [n for n in node.all_input_nodes if n in known]
    name = _name(node)
    if name in _PRODUCTS:  # over the batch: the gradient of a weight
        return sum(n in known for n in node.args[-2:]) == 1
    if name in _ACCUMULATE:
        return _first(node) in known
    if node.target is operator.getitem and _name(_first(node)) == _CONVOLUTION_BACKWARD:
        return len(inputs) > 0 and node.args[1:] == (0,)
    return (len(inputs) > 0 or name == _RANDOM) and not _sums_batch(node)


def kernels_of(graph: fx.Graph, grown: set[fx.Node]) -> list[Kernel]:
    """Fused kernels of what grows with the batch, in order."""
    return list(_Fusion(grown).run(graph))


def reuse_kept(backward: fx.Graph, kernels: Sequence[Kernel], returned: Set[str]) -> set[str]:
    """Names of what forward kept that kernels write what they make over, as large and read no more.

    AOTAutograd donates such buffers to inductor (``donated_buffer``) but those ``returned``, which
    the caller has.
    """
    apart = {
        buffer_of(n) for node in backward.nodes
        if node.op == "call_function" and not _is_fused(node) and not _OPS.is_view(node)
        for n in node.all_input_nodes
    }  # fmt: skip
    last = {b: k for k in kernels for b in k.read if b.op == "placeholder" and b not in apart}
    found = set()
    for buffer, kernel in last.items():
        given = buffer.name.startswith(("tangents", "primals")) or buffer.name in returned
        if not given and size_bytes(buffer) in kernel.made:
            kernel.made.remove(size_bytes(buffer))
            found.add(buffer.name)
    return found


class _Fusion:
    """Of one graph."""

    def __init__(self, grown: set[fx.Node]) -> None:
        self._grown = grown
        self._levels: dict[fx.Node, int] = {}
        self._reads: dict[fx.Node, dict[fx.Node, dict[fx.Node, int]]] = {}
        """Of a fusible node: buffers that it is made of, with sizes by view."""
        self._indexed: set[fx.Node] = set()
        """Fusible nodes made by index arithmetic."""
        self._kernel: dict[fx.Node, Kernel] = {}
        self._readers: dict[tuple[fx.Node, int], Kernel] = {}
        """By a buffer and the level it is read at."""
        self._kernels: list[Kernel] = []

    def run(self, graph: fx.Graph) -> Iterator[Kernel]:
        """Kernels, with what they read and write."""
        for node in graph.nodes:
            if node.op == "placeholder":
                self._levels[node] = 0
            elif node.op == "call_function":
                self._visit(node)
        for kernel in self._kernels:
            own = set(kernel.nodes)
            kernel.read = {b: v for b, v in kernel.read.items() if b not in own}
            kernel.written = [size_bytes(n) for n in kernel.nodes if self._leaves(n, kernel)]
            kernel.made = list(kernel.written)
            yield kernel

    def _visit(self, node: fx.Node) -> None:
        level = max((self._levels.get(n, 0) for n in node.all_input_nodes), default=0)
        fused, given = _is_fused(node), any(n in self._grown for n in node.all_input_nodes)
        sums = fused and given and _sums_batch(node)
        apart = not fused and node.target is not operator.getitem
        self._levels[node] = level + (sums or apart)
        if buffer_of(node) is not node or not (sums or node in self._grown):
            return
        if node.target is operator.getitem or _name(node) in _PRICED:
            return
        reads = self._made_of(node)
        if fused:
            self._reads[node] = reads
            by_row = _reduces(node) and not sums
            if not (sums or by_row or self._is_read_unfused(node)):
                return
            kernel = self._join(reads, level, sums=sums)
            kernel.sums |= sums
            kernel.by_row |= by_row
        else:
            kernel = self._new(level)
        kernel.nodes.append(node)
        kernel.indexed += size_elements(node) if node in self._indexed else 0
        self._kernel[node] = kernel
        for buffer, views in reads.items():
            kernel.read.setdefault(buffer, {}).update(views)
            if fused:
                self._readers.setdefault((buffer, level), kernel)

    def _new(self, level: int) -> Kernel:
        made = Kernel(level)
        self._kernels.append(made)
        return made

    def _made_of(self, node: fx.Node) -> dict[fx.Node, dict[fx.Node, int]]:
        """Buffers behind a node, through nodes that have none."""
        found: dict[fx.Node, dict[fx.Node, int]] = {}
        look_up = _name(node) in _LOOK_UPS
        if _name(node) in _PUTS_TOGETHER or _is_transposed(node):
            self._indexed.add(node)
        for view in node.all_input_nodes:
            buffer = _through_parts(buffer_of(view))
            if buffer in self._kernel or buffer not in self._reads:
                if buffer in self._grown:
                    size = size_bytes(node) if look_up else size_bytes(view)
                    found.setdefault(buffer, {})[view] = size
            else:
                for inner, views in self._reads[buffer].items():
                    found.setdefault(inner, {}).update(views)
                if buffer in self._indexed:
                    self._indexed.add(node)
        return found

    def _join(
        self, reads: Mapping[fx.Node, Mapping[fx.Node, int]], level: int, *, sums: bool
    ) -> Kernel:
        """A kernel whose results or inputs are read, of one level; a new one if there is none."""
        for buffer in reads:
            made_by = self._kernel.get(buffer)
            if made_by is not None and made_by.level == level and not (sums and made_by.by_row):
                return made_by
        beside = (self._readers.get((buffer, level)) for buffer in reads)
        return next((k for k in beside if k is not None), None) or self._new(level)

    def _is_read_unfused(self, node: fx.Node) -> bool:
        return any(u.op == "output" or not _is_fused(u) for u in _readers(node))

    def _leaves(self, node: fx.Node, kernel: Kernel) -> bool:
        """Whether anything but its kernel reads it."""
        if node not in self._grown:
            return False
        seen, ahead = {node}, [node]
        while ahead:
            for reader in _readers(ahead.pop()):
                if reader.op == "output" or not _is_fused(reader):
                    return True
                own = self._kernel.get(reader)
                if own is None and reader not in seen:
                    seen.add(reader)
                    ahead.append(reader)
                elif own is not None and own is not kernel:
                    return True
        return False


def size_elements(node: fx.Node) -> int:
    """Of what it makes."""
    made = tensor_of(node)
    return 0 if made is None else made.numel()


def _is_transposed(node: fx.Node) -> bool:
    """Whether a result is laid out otherwise than what it is made of."""
    made = tensor_of(node)
    given = [t for n in node.all_input_nodes if (t := tensor_of(n)) is not None]
    return made is not None and any(
        t.shape == made.shape and t.stride() != made.stride() and 0 not in t.stride() for t in given
    )


def _first(node: fx.Node) -> fx.Node:
    first = node.args[0]
    assert isinstance(first, fx.Node), f"{node} is made of no other node"
    return first


def _name(node: fx.Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return schema.name if schema is not None else ""


def _is_fused(node: fx.Node) -> bool:
    """Views too; parts of a tuple go with what makes that."""
    if node.target is operator.getitem:
        return _is_fused(_first(node))
    if node.op != "call_function" or _name(node) in _PRICED:
        return False
    return _OPS.is_fusible(node) or _name(node) in _POINTWISE


def _through_parts(node: fx.Node) -> fx.Node:
    """``var_mean`` itself, of its mean."""
    parts = node.target is operator.getitem and _is_fused(_first(node))
    return _first(node) if parts else node


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads it, through views and parts."""
    for user in node.users:
        if user.op == "call_function" and (user.target is operator.getitem or _OPS.is_view(user)):
            if user.target is operator.getitem and not _is_fused(user):
                continue
            yield from _readers(user)
        else:
            yield user


def _source(node: fx.Node) -> torch.Tensor | None:
    """Its largest input."""
    given = [t for n in node.all_input_nodes if (t := tensor_of(n)) is not None]
    return max(given, key=torch.Tensor.numel, default=None)


def _made(node: fx.Node) -> torch.Tensor | None:
    value: Any = node.meta.get("val")
    value = value[0] if isinstance(value, tuple | list) and value else value
    return value if isinstance(value, torch.Tensor) else None


def _reduces(node: fx.Node) -> bool:
    source, made = _source(node), _made(node)
    if source is None or made is None or _name(node) in _LOOK_UPS or _OPS.is_view(node):
        return False
    return _is_fused(node) and made.numel() < source.numel() and node.target is not operator.getitem


def _sums_batch(node: fx.Node) -> bool:
    """Whether it reduces its first dimension."""
    if not _reduces(node):
        return False
    source = _source(node)
    assert source is not None, f"{node} reduces nothing"
    dims = next((a for a in node.args[1:] if isinstance(a, list | tuple | int)), None)
    if isinstance(dims, bool) or dims is None or dims == []:
        return True
    listed = [dims] if isinstance(dims, int) else list(dims)
    return 0 in listed or -source.dim() in listed
