"""Copies in 16 bits that ``torch.autocast`` makes of fp32 weights, and what travels so.

Its cache copies each weight once a forward; autograd holds the copy until backward.

Simplifications: copies of checkpointed layers, which only the cache holds, live as long; of weights
that no product reads there are none, but they take their time.
"""

from __future__ import annotations

from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Gradient, Unit

CAST_BYTES = 2
"""Per element."""


class WeightCopies:
    """Those of one rank; none where nothing enters autocast."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.on = context.plan.autocasts
        self.alive: set[int] = set()
        """Units, by ``id``, whose copies are there."""

    def before(self, unit: Unit, phase: str) -> None:
        """A unit's forward makes them, unless they are there."""
        if phase == "backward" or not self.on or id(unit) in self.alive:
            return
        self.alive.add(id(unit))
        c = self.c
        tensors = [numel * CAST_BYTES for numel in unit.multiplied]
        c.builder.alloc("parameter", sum(tensors), "autocast copies", tensors=tensors)
        moved = sum(g.numel for g in unit.cast) * (c.weight_bytes + CAST_BYTES)
        seconds = c.costs.memory_s(moved, kernels=len(unit.cast))
        c.builder.compute("cast weights", phase, seconds, launches=len(unit.cast))

    def after(self, unit: Unit, phase: str) -> None:
        """Its backward lets go of them."""
        if phase == "backward" and id(unit) in self.alive:
            self.alive.discard(id(unit))
            self.c.builder.free("parameter", sum(unit.multiplied) * CAST_BYTES, "autocast copies")

    def back(self, unit: Unit) -> tuple[float, int]:
        """Bytes moved and kernels that cast a unit's gradients back."""
        cast, width = unit.cast if self.on else (), self.c.weight_bytes
        return sum(g.numel * CAST_BYTES + g.size_bytes(width) for g in cast), len(cast)


class Wire:
    """Bytes of what ranks exchange under DeepSpeed.

    With ``torch_autocast`` parameters of linear layers and convolutions travel in its type, others
    in their own (``get_comm_dtype``); without, all in ``communication_data_type`` or their own.
    """

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        narrow = (u.products for u in context.units) if context.plan.autocasts else ()
        self.narrow = frozenset[str]().union(*narrow)

    def width(self, gradient: Gradient) -> int:
        """Per element."""
        return CAST_BYTES if gradient.name in self.narrow else self.widths[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Of the types that there are, each of which has its bucket."""
        return (CAST_BYTES, self.c.weight_bytes) if self.narrow else (self.c.comm_bytes,)
