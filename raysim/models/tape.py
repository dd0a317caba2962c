"""Write a layer down as its ``forward`` would run it, and get the layer table's ``Body``.

``Tape`` has one method per building block of an eager Hugging Face model: linear, norms,
activations, dropout, residual additions, embeddings, convolution. Each appends a ``Module`` and
returns the ``Tensor`` it produces, so that a family's file reads like its ``modeling_*.py``. The
tape keeps the accounts that are the same everywhere:

- what autograd saves (``torch/csrc/autograd`` derivatives.yaml): by storage, so that three views of
  one projection are one tensor, and a tensor used twice is saved once;
- a gradient summed at every tensor used more than once: one kernel and three passes per extra use;
- which tensors tensor parallelism divides: the output of ``column`` until a ``row`` operator.

Bytes moved are those of 16-bit compute: an fp32 element counts as two. Not modelled: kernels on
position ids, masks and rotary tables, which run once per forward and do not grow with the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from raysim.models.activations import ACTIVATIONS
from raysim.models.shapes import LayerNorm
from raysim.models.table import (
    Autocast,
    Body,
    Gemm,
    Module,
    Operator,
    OperatorKind,
    Parameter,
    Saved,
    Split,
    TensorDtype,
)

Joined = Literal["views", "contiguous", "in place"]
"""Gradients that a split's backward makes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An activation: ``rows`` per sample times ``width``; a view keeps the name of its storage."""

    name: str
    rows: float
    width: int
    storage: int = 0
    """Width of the storage it is a view of; 0: its own."""
    dtype: TensorDtype = "compute"
    sharded: bool = False

    @property
    def numel(self) -> float:
        """Elements per sample."""
        return self.rows * self.width

    def saved(self) -> Saved:
        """What autograd keeps alive when it saves this tensor: the whole storage."""
        numel = self.rows * (self.storage or self.width)
        return Saved(name=self.name, numel=numel, dtype=self.dtype, sharded=self.sharded)

    def read(self) -> Saved:
        """The tensor alone, without the rest of its storage."""
        return replace(self.saved(), numel=self.numel)

    def view(self, width: int) -> Tensor:
        """A slice of the last dimension, sharing storage."""
        return replace(self, width=width, storage=self.storage or self.width)

    def regroup(self, width: int) -> Tensor:
        """The same elements in rows of ``width`` (heads), for norms over the last dimension."""
        factor = self.width / width
        storage = round(self.storage / factor) if self.storage else 0
        return replace(self, rows=self.rows * factor, width=width, storage=storage)


class Tape:
    """Modules of one layer, in execution order."""

    def __init__(self) -> None:
        self.modules: list[Module] = []
        self._used: set[str] = set()

    def body(self, *, built_first: tuple[str, ...] = ()) -> Body:
        """The finished layer; ``built_first`` as in :class:`Body`."""
        return Body(modules=tuple(self.modules), built_first=built_first)

    def forks(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs whose gradient backward must add to another use's; marks all of them used.

        Views do not count: ``split`` accounts for their gradients.
        """
        own = [x for x in inputs if not x.storage]
        extra = [x for x in own if x.name in self._used]
        self._used.update(x.name for x in own)
        return extra

    def append(
        self, name: str, cls: str, *operators: Operator, parameters: tuple[Parameter, ...] = ()
    ) -> None:
        """Add one ``torch.nn.Module``; without parameters it groups operators of its forward."""
        self.modules.append(Module(name=name, cls=cls, operators=operators, parameters=parameters))

    def run(
        self,
        name: str,
        cls: str,
        *,
        kind: OperatorKind = "elementwise",
        operator: str = "",
        inputs: tuple[Tensor, ...],
        output: Tensor,
        moved: float,
        kernels: int = 1,
        moved_backward: float,
        kernels_backward: int = 1,
        indexed: tuple[float, float] = (0.0, 0.0),
        saves: tuple[Saved, ...] = (),
        parameters: tuple[Parameter, ...] = (),
        split: Split | None = None,
        views: int = 0,
        autocast: Autocast = "promotes",
        scratch: tuple[tuple[Saved, ...], tuple[Saved, ...]] = ((), ()),
        layer_norms: tuple[LayerNorm, ...] = (),
    ) -> Tensor:
        """Add a memory-bound operator; gradient sums for reused inputs are added to backward.

        ``views``: ATen operators without a kernel that it calls besides. ``indexed``: as in
        :class:`Operator`, forward and backward. ``scratch``: of a
        loss, forward's and backward's.
        """
        forks = self.forks(*inputs)
        op = Operator(
            name=operator or name,
            kind=kind,
            moved=moved,
            moved_backward=moved_backward + sum(3 * x.numel for x in forks),
            indexed=indexed[0],
            indexed_backward=indexed[1],
            saves=saves,
            output=output.numel,
            split=split or ("heads" if output.sharded else "none"),
            kernels=kernels,
            kernels_backward=kernels_backward + len(forks),
            dispatches=kernels + views,
            reads=tuple([x.read() for x in inputs]),
            joined=tuple([x.name for x in forks]),
            result=output.name,
            autocast=autocast,
            scratch=scratch[0],
            scratch_backward=scratch[1],
            layer_norms=layer_norms,
        )
        self.append(name, cls, op, parameters=parameters)
        return output

    def linear(
        self,
        name: str,
        x: Tensor,
        width: int,
        *,
        bias: bool = True,
        split: Split = "none",
        cls: str = "Linear",
        transposed: bool = False,
        tied_to: str | None = None,
        bias_tied_to: str | None = None,
        keep: bool = True,
        views: int = 0,
    ) -> Tensor:
        """``y = x W^T + b``; ``transposed`` is GPT-2's Conv1D with its weight stored [in, out].

        ``keep`` False: another layer already counts the input. ``views``: operators the host calls
        beyond a plain linear layer's.
        Backward is two GEMMs over the same activations, and a sum over rows for the bias.
        """
        k, rows = x.width, x.rows
        column, row = split in ("column", "vocab"), split == "row"
        dim = 0 if column else 1 if row else None
        shape = (k, width) if transposed else (width, k)
        shard = dim if dim is None or not transposed else 1 - dim
        parameters = [
            Parameter(name=_join(name, "weight"), shape=shape, shard=shard, tied_to=tied_to)
        ]
        if bias:
            b = Parameter(
                name=_join(name, "bias"), shape=(width,), shard=0 if column else None,
                tied_to=bias_tied_to,
            )  # fmt: skip
            parameters.append(b)
        forks = self.forks(x)
        activations = rows * (k + width)
        op = Operator(
            name=name or cls,
            kind="gemm",
            flops=2.0 * rows * k * width,
            moved=activations,
            moved_backward=2 * activations
            + (rows * width if bias else 0)
            + sum(3 * t.numel for t in forks),
            gemm=Gemm(rows=rows, n=width, k=k),
            saves=(x.saved() if keep else replace(x.saved(), numel=0.0),),
            output=rows * width,
            split=split,
            kernels=1,
            kernels_backward=2 + bias + len(forks),
            # transpose of the weight, rows flattened, product, rows restored
            dispatches=(3 if transposed else 4) + views,
            reads=(x.read(),),
            joined=tuple([t.name for t in forks]),
            result=f"{name}.out",
            autocast="half",
        )
        self.append(name, cls, op, parameters=tuple(parameters))
        return Tensor(name=f"{name}.out", rows=rows, width=width, sharded=column)

    def layer_norm(
        self,
        name: str,
        x: Tensor,
        *,
        bias: bool = True,
        affine: bool = True,
        cls: str = "LayerNorm",
        views: int = 0,
    ) -> Tensor:
        """``native_layer_norm``: one kernel; keeps its input, mean and reciprocal deviation."""
        names = (["weight"] if affine else []) + (["bias"] if affine and bias else [])
        stats = [
            Saved(name=f"{name}.{s}", numel=x.rows, dtype="fp32", sharded=x.sharded)
            for s in ("mean", "rstd")
        ]
        return self.run(
            name,
            cls,
            kind="norm",
            inputs=(x,),
            output=Tensor(name=f"{name}.out", rows=x.rows, width=x.width, sharded=x.sharded),
            moved=2 * x.numel,
            # CUDA: one kernel for dx (dy, x -> dx), one for the weight gradients (dy, x).
            moved_backward=5 * x.numel if affine else 3 * x.numel,
            kernels_backward=2 if affine else 1,
            indexed=(0.5 * x.numel, 0.5 * x.numel),
            layer_norms=(LayerNorm(rows=x.rows, width=x.width),) if affine else (),
            views=views,
            saves=(x.saved(), *stats),
            autocast="fp32",
            parameters=tuple(Parameter(name=_join(name, n), shape=(x.width,)) for n in names),
        )

    def rms_norm(self, name: str, x: Tensor, *, cls: str, style: str = "llama") -> Tensor:
        """Eager RMSNorm, one kernel per line of ``LlamaRMSNorm.forward``.

        ``llama`` casts back before the weight, ``gemma`` multiplies by ``1 + weight`` in fp32,
        ``olmo`` by the weight in fp32, ``t5`` scales the uncast input, ``plain`` has no weight.
        All keep the fp32 copy of the input that ``.to(float32)`` made (t5 the input as well), and
        the reciprocal root per row.
        """
        kernels, passes, kernels_backward, passes_backward, indexed = RMS_COSTS[style]
        own = replace(x, name=f"{name}.x32", storage=0, dtype="fp32").saved()
        own = replace(own, source=x.name)
        rstd = Saved(name=f"{name}.rstd", numel=x.rows, dtype="fp32", sharded=x.sharded)
        normed = Saved(
            name=f"{name}.normed",
            numel=x.numel,
            dtype="fp32" if style in ("gemma", "olmo") else "compute",
            sharded=x.sharded,
            source=x.name if style in ("llama", "t5") else "",
        )
        saves = [own, rstd]
        if style == "t5":
            saves.append(x.saved())
        if style != "plain":
            saves.append(normed)
        weight = (
            () if style == "plain" else (Parameter(name=_join(name, "weight"), shape=(x.width,)),)
        )
        return self.run(
            name,
            cls,
            kind="norm",
            inputs=(x,),
            output=Tensor(name=f"{name}.out", rows=x.rows, width=x.width, sharded=x.sharded),
            moved=passes * x.numel,
            kernels=kernels,
            moved_backward=passes_backward * x.numel,
            kernels_backward=kernels_backward,
            indexed=(indexed * x.numel, (indexed + 1) * x.numel),
            saves=tuple(saves),
            parameters=weight,
            autocast="promotes" if style == "plain" else "weighs",
        )

    def activation(self, name: str, x: Tensor, act: str, *, cls: str = "") -> Tensor:
        """A pointwise nonlinearity of ``transformers.activations.ACT2FN``."""
        cost = ACTIVATIONS[act]
        out = Tensor(name=f"{name}.out", rows=x.rows, width=x.width, sharded=x.sharded)
        saves = [x.saved()] if cost.saves_input else []
        saves += [out.saved()] if cost.saves_output else []
        saves += [replace(out, name=f"{name}.t{i}").saved() for i in range(cost.temporaries)]
        if cost.power:  # the first is of the input alone, the others of its power
            saves[1] = replace(saves[1], source=x.name)
        return self.run(
            name,
            cls or cost.cls,
            inputs=(x,),
            output=out,
            moved=cost.passes * x.numel,
            kernels=cost.kernels,
            moved_backward=cost.passes_backward * x.numel,
            kernels_backward=cost.kernels_backward,
            saves=tuple(saves),
            autocast="fp32" if cost.power else "promotes",
        )

    def multiply(self, name: str, a: Tensor, b: Tensor, *, cls: str) -> Tensor:
        """``a * b``, of one shape; keeps both factors."""
        return self.run(
            name,
            cls,
            operator=f"{name}.mul",
            inputs=(a, b),
            output=Tensor(name=f"{name}.product", rows=a.rows, width=a.width, sharded=a.sharded),
            moved=3 * a.numel,
            moved_backward=6 * a.numel,
            kernels_backward=2,
            saves=(a.saved(), b.saved()),
        )

    def scale(self, name: str, x: Tensor, *, cls: str) -> Tensor:
        """Multiplication by a constant; nothing kept."""
        out = replace(x, name=f"{name}.scaled", storage=0)
        return self.run(
            name, cls, operator=f"{name}.scale", inputs=(x,), output=out,
            moved=2 * x.numel, moved_backward=2 * x.numel,
        )  # fmt: skip

    def copy(self, name: str, x: Tensor, *, cls: str) -> Tensor:
        """A view made contiguous; nothing kept."""
        out = replace(x, name=f"{name}.copy", storage=0)
        return self.run(
            name, cls, operator=f"{name}.copy", inputs=(x,), output=out,
            moved=2 * x.numel, moved_backward=0, kernels_backward=0, views=1, indexed=(x.numel, 0),
        )  # fmt: skip

    def dropout(self, name: str, x: Tensor, probability: float, *, cls: str = "Dropout") -> Tensor:
        """``native_dropout``: one kernel, keeps a mask of one byte per element; absent at 0."""
        if probability == 0:
            return x
        mask = Saved(name=f"{name}.mask", numel=x.numel, dtype="bool", sharded=x.sharded)
        return self.run(
            name,
            cls,
            operator=f"{name}.dropout",
            inputs=(x,),
            output=replace(x, name=f"{name}.out", storage=0),
            moved=2.5 * x.numel,
            moved_backward=2.5 * x.numel,
            saves=(mask,),
        )

    def add(self, name: str, a: Tensor, b: Tensor, *, cls: str, operator: str = "add") -> Tensor:
        """Residual addition: keeps nothing, and its gradient passes through unchanged."""
        label = f"{name}.{operator}" if name else operator
        return self.run(
            name,
            cls,
            operator=label,
            inputs=(a, b),
            output=Tensor(name=f"{label}.out", rows=a.rows, width=a.width, sharded=a.sharded),
            moved=3 * a.numel,
            moved_backward=0,
            kernels_backward=0,
        )

    def split(
        self, name: str, x: Tensor, widths: list[int], *, cls: str, gradients: Joined = "views"
    ) -> list[Tensor]:
        """Views of a fused projection; backward concatenates their gradients in one kernel.

        ``gradients``: what it joins. Contiguous tensors are copied in whole vectors (torch's
        ``CatArrayBatchedCopy_contig``); those that lie in one tensor as they belong, not at all.
        """
        moved = 0 if gradients == "in place" else 2 * x.numel
        self.run(
            name, cls, operator=f"{name}.split", inputs=(x,), output=x, moved=0, kernels=0,
            moved_backward=moved, kernels_backward=int(moved > 0), views=1,
            indexed=(0, JOINED * x.numel if gradients == "views" else 0),
        )  # fmt: skip
        return [x.view(w) for w in widths]

    def embedding(
        self,
        name: str,
        rows: float,
        width: int,
        count: int,
        *,
        vocab_parallel: bool = False,
        cls: str = "Embedding",
        ids: str = "input_ids",
        tied_to: str | None = None,
        per_sample: bool = True,
    ) -> Tensor:
        """Table look-up: keeps the indices; ``per_sample`` False: positions shared by the batch."""
        weight = Parameter(
            name=_join(name, "weight"),
            shape=(count, width),
            shard=0 if vocab_parallel else None,
            tied_to=tied_to,
        )
        out = Tensor(name=f"{name}.out", rows=rows, width=width)
        indices = Saved(name=ids, numel=rows, dtype="int64")
        return self.run(
            name,
            cls,
            kind="embedding",
            inputs=(),
            output=out,
            moved=2 * out.numel if per_sample else 0.0,
            moved_backward=2 * out.numel,
            # embedding_dense_backward on CUDA sorts the indices, then finds and sums segments;
            # eight launches are assumed (ATen/native/cuda/EmbeddingBackwardKernel.cu).
            kernels_backward=8,
            indexed=(0.0, SORTED * out.numel),
            saves=(indices,) if per_sample else (),
            parameters=(weight,),
            split="vocab" if vocab_parallel else "none",
        )


SORTED = 10.0
JOINED = 2.6
"""Indexed elements that one counts as in an embedding's gradient (sorted by token, summed), and in
``torch.cat`` of views: 15 ps in Llama's and 3.7 in
Pythia's step beyond their traffic on H100 (``training_operators.json``)."""
RMS_COSTS = {
    # style: kernels and 16-bit passes over the input, forward; the same for backward. Counted from
    # the operators autograd dispatches, each reading its operands and writing its result once. Last
    # the elements that forward indexes: casts, and products with the root and with the weight;
    # backward one more, for the mean's gradient spread over a row.
    "llama": (8, 18.0, 16, 48.0, 3),
    "gemma": (10, 20.0, 17, 54.0, 3),
    "olmo": (8, 20.0, 16, 54.0, 3),
    "t5": (8, 17.0, 17, 47.0, 3),
    "plain": (7, 16.0, 13, 42.0, 2),
}


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
