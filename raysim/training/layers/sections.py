"""From the layer table to priced pieces: what the compiler emits one operation for.

A ``Unit`` is a run of modules between two places where something else can happen: a tensor-parallel
all-reduce, or (``cut="module"``) the hooks of ZeRO-3 and of bucketed gradient reduction. A
``Section`` is a run of layers that activation checkpointing recomputes together, or one plain
layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from math import ceil
from operator import attrgetter
from typing import Literal, NamedTuple

from raysim.models.table import (
    COMPUTE_DTYPE_BYTES,
    FIXED_DTYPE_BYTES,
    Module,
    Parameter,
    Saved,
)
from raysim.training.layers.recompute import Again
from raysim.training.layers.sharding import (
    Exchange,
    Exchanges,
)
from raysim.training.settings.deepspeed import Precision

Cut = Literal["module", "collective"]
INDEX_BYTES = 8
"""Of a sparse tensor, each (``int64``)."""


class Gradient(NamedTuple):
    """One parameter's share on this rank."""

    name: str
    numel: int
    tied: bool = False
    """Named in full by the storage it shares with another layer of the stage."""
    expert: bool = False
    """Of routed experts: only every so many ranks hold it."""
    among: int = 0
    """Of an expert: ranks that share its mixture; 0: the mesh's ``ep``."""
    fp8: bool = False
    """Products read it in fp8."""
    stored_bytes: float | None = None
    """Per element, where it is stored in another type than the plan's."""
    whole_bytes: float = 0.0
    """Of those, what is no part of the tensor, and never sharded (scales of 4-bit weights)."""
    matrix: bool = False
    """Of two or more dimensions."""
    rows: int = 0
    """Of its sparse gradient, one micro-batch's; 0: that is dense."""
    row_numel: int = 0
    """Elements of each."""

    def gradient_bytes(self, width: int) -> int:
        """As backward makes it; sparse, with an index to each row."""
        if not self.rows:
            return self.size_bytes(width)
        return self.rows * (self.row_numel * width + INDEX_BYTES)

    def packed(self, width: int) -> Gradient:
        """As a tensor of elements of ``width`` bytes that hold several weights of fewer bits."""
        if self.stored_bytes is None or self.stored_bytes >= width:
            return self
        return self._replace(
            numel=ceil(self.numel * (self.stored_bytes - self.whole_bytes) / width)
        )

    def size_bytes(self, width: int) -> int:
        """As stored, ``width`` bytes an element unless it says so itself."""
        return round(self.numel * (self.stored_bytes or width))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradients:
    """Of a unit's backward, the products that nobody waits for until the optimizer step."""

    seconds: float
    host_s: float
    flops: float
    input_bytes: int
    """Of ``saved_bytes``, the inputs that they still need when the input gradients are made."""
    output_bytes: int
    """Output gradients that they keep from then on."""

    @property
    def kept_bytes(self) -> int:
        """What they keep until they are made."""
        return self.input_bytes + self.output_bytes


@dataclass(frozen=True, slots=True)
class Unit:
    """Modules that run back to back on the compute stream, priced for one micro-batch."""

    name: str
    gradients: tuple[Gradient, ...]
    """Trainable parameters whose gradients this unit's backward produces, tied ones excluded."""
    uses: tuple[Gradient, ...]
    """Every parameter forward reads, by the name of its storage: what ZeRO-3 gathers."""
    modules: tuple[Module, ...]
    forward_s: float
    backward_s: float
    forward_host_s: float
    backward_host_s: float
    """What dispatching them takes the host, module calls included."""
    calls: int
    """Modules called: its own, and those around them that nothing called before."""
    syncs: bool
    """Forward ends with scalars copied to or from the GPU, for which the host waits."""
    syncs_backward: bool
    """Likewise backward."""
    flops: float
    """Forward FLOPs of one micro-batch on this rank."""
    backward_flops: float
    saved_bytes: int
    """Tensors first saved here and kept for backward, loss tensors excluded."""
    saved: tuple[int, ...]
    """The same, tensor by tensor, but for those that are made after its fullest moment."""
    saved_late: tuple[int, ...]
    """Those."""
    loss_bytes: int
    """What the loss keeps, and logits that are held."""
    loss_saved: tuple[int, ...]
    """The same, tensor by tensor."""
    lasting: tuple[int, ...]
    """Tensors of the model's output that the training loop holds until the next are there."""
    forward_temp_bytes: int
    forward_temps: tuple[int, ...]
    """The same, tensor by tensor."""
    backward_temps: tuple[int, ...]
    """Tensor by tensor: the output's gradient and the input's."""
    left: tuple[tuple[int, int, bool], ...]
    """Bytes of each tensor that its forward makes, does not keep and leaves to others, how many
    units later it is gone, or kept, and whether it is made after the fullest moment."""
    waiting: tuple[int, ...]
    """Gradients made before it that its backward neither reads nor makes, tensor by tensor."""
    summed: bool
    """The output's gradient is a sum of two."""
    temp_category: str
    """``logits`` where the temporaries are the loss's, else ``temporary``."""
    weights: WeightGradients
    """The part of its backward that can wait."""
    again: Again
    """Its recomputation, should its layer be checkpointed."""
    exchanges: Exchanges = field(default_factory=Exchanges)
    """What peers of one replica exchange around it."""
    backward_tail_s: float = 0.0
    """Part of ``backward_s`` that runs beside ``exchanges.after_backward``."""

    @property
    def numel(self) -> int:
        """Trainable elements on this rank."""
        return sum(g.numel for g in self.gradients)

    @property
    def has_backward(self) -> bool:
        """Whether backward gets here."""
        return any(m.has_backward for m in self.modules)

    @property
    def multiplies(self) -> bool:
        """Whether it runs products of cuBLAS; convolutions and recurrent layers are cuDNN's."""
        operators = (o for m in self.modules for o in m.operators)
        return any(o.attention or (o.gemm and not o.conv) for o in operators)

    @property
    def multiplied(self) -> tuple[int, ...]:
        """Elements of each parameter that products read, but for those of fp32 (``exact``)."""
        return tuple(use.numel for use in self._read(exact=False))

    @property
    def products(self) -> frozenset[str]:
        """Names of the parameters that products read, likewise."""
        return frozenset(use.name for use in self._read(exact=False))

    @property
    def cast(self) -> tuple[Gradient, ...]:
        """``gradients`` but for those of parameters that autocast leaves in fp32."""
        exact = {use.name for use in self._read(exact=True)}
        return tuple(g for g in self.gradients if g.name not in exact)

    def _read(self, *, exact: bool) -> Iterator[Gradient]:
        owners = [m for m in self.modules for _ in m.parameters]
        for use, m in zip(self.uses, owners, strict=True):
            if any(o.gemm is not None and o.exact == exact for o in m.operators):
                yield use

    def renamed(
        self, name: str, gradients: tuple[Gradient, ...], uses: tuple[Gradient, ...]
    ) -> Unit:
        """The same of another layer that is alike."""
        return Unit(name, gradients, uses, *_but_for_names(self))

    def run(self, phase: str) -> tuple[float, float, float, Sequence[Exchange]]:
        """Seconds, the host's, FLOPs and what is exchanged behind it, of forward or recompute."""
        if phase == "recompute":
            return self.again.seconds, self.again.host_s, self.again.flops, self.again.after
        return self.forward_s, self.forward_host_s, self.flops, self.exchanges.after_forward

    def gradient_tensors(self, width: int) -> tuple[int, ...]:
        """Bytes of each gradient, the last parameter's first, as backward makes them."""
        return tuple(g.gradient_bytes(width) for g in reversed(self.gradients))

    def gradient_bytes(self, width: int) -> int:
        """Of all of them."""
        return sum(g.gradient_bytes(width) for g in self.gradients)


_but_for_names = attrgetter(*[f.name for f in fields(Unit)][3:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Layers recomputed together (``checkpointed``), or one layer that is not."""

    units: tuple[Unit, ...]
    checkpointed: bool
    input_bytes: int
    """Hidden state handed in by the previous layer: all that a checkpoint keeps."""
    output_bytes: int

    @property
    def hooks_s(self) -> float:
        """The host's, in the hooks of a non-reentrant checkpoint: once in forward, twice later."""
        return sum(u.again.hooks_s for u in self.units) if self.checkpointed else 0.0

    @property
    def reached(self) -> Iterator[Unit]:
        """Units in the order in which backward gets to them."""
        return (unit for unit in reversed(self.units) if unit.has_backward)


def weights_of(units: Iterable[Unit]) -> dict[str, Gradient]:
    """What units read, by the name of its storage: several may read one weight."""
    return {g.name: g for u in units for g in u.uses}


def tp_numel(parameter: Parameter, tp: int) -> int:
    """Elements of a parameter on one tensor-parallel rank."""
    if parameter.shard is None or tp == 1:
        return parameter.numel
    return -(-parameter.numel // tp)


def saved_bytes(saved: Saved, batch: int, share: int, dtype: Precision) -> int:
    """Bytes one saved tensor takes on one rank, of ``share`` that divide it."""
    width = (
        COMPUTE_DTYPE_BYTES[dtype] if saved.dtype == "compute" else FIXED_DTYPE_BYTES[saved.dtype]
    )
    return round(saved.numel * (1 if saved.fixed else batch) * width / share)
