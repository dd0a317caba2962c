"""What fp8 adds around any engine: cached weights, and the scales that ranks agree on.

Transformer Engine casts weights in a step's first micro-batch and keeps the copies
(``get_weight_workspace``, ``is_first_microbatch``); weights that are fp8 themselves only get what
the optimizer did not write: their transposes, or, under mxfp8, both layouts of what was gathered
in 16 bits. Delayed scaling sums up each pass with one all-reduce of all amax values and a kernel
that makes new scales of them (``FP8GlobalStateManager.reduce_and_update_fp8_tensors``).

Not modelled: the amax of weights that the optimizer writes in fp8 (one all-reduce of a few
kilobytes per step).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from raysim.training.engines.context import SCALAR_BYTES, Engine, EngineContext
from raysim.training.layers.sections import Unit
from raysim.training.program import Call
from raysim.training.settings.fp8 import Fp8Settings

AMAX_VALUES = {"forward": 3, "backward": 2}
"""Of one linear: input, weight, output; its gradient, its input's (``module/base.py``)."""
UPDATE_KERNELS = 2
"""Concatenation, and amax and scale updated by one fused kernel."""


class Quantizing:
    """An engine, and what fp8 does before and after its units."""

    def __init__(self, inner: Engine, context: EngineContext, settings: Fp8Settings) -> None:
        self.inner = inner
        self.c = context
        self.s = settings
        self.numel = {id(u): sum(g.numel for g in u.uses if g.fp8) for u in context.units}
        """Elements of weights that products read in fp8, by ``id`` of their unit."""
        self.linears = sum(o.fp8 is not None for u in context.units for m in u.modules
                           for o in m.operators)  # fmt: skip
        self.steps = -1
        """Optimizer steps that had ended when this one began."""
        self.stale: set[int] = set()
        """Units, by ``id``, whose copies this step has not made yet."""

    def setup(self) -> None:
        """Copies that live from step to step."""
        self.inner.setup()
        if self.s.caches_weights and not self.s.primary_weights:
            each = self.s.weight_copies(self.c.costs.gpu.architecture)
            self.c.builder.alloc("parameter", sum(self.numel.values()) * each, "fp8 weights")

    def begin_forward(self) -> None:
        """A step's first forward finds every copy out of date."""
        self.inner.begin_forward()
        ended = len(self.c.builder.program.step_ends)
        if ended != self.steps:
            self.steps = ended
            self.stale = {unit for unit, numel in self.numel.items() if numel}

    def begin_backward(self, *, boundary: bool) -> None:
        """Nothing of its own."""
        self.inner.begin_backward(boundary=boundary)

    def alike(self) -> Hashable:
        """Not while copies are made; for the rest as the engine says."""
        return None if self.stale else self.inner.alike()

    def resume(self, state: Hashable) -> None:
        """Copies are all made."""
        self.inner.resume(state)

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Weights that have arrived are made ready for their products."""
        waits = tuple(self.inner.before(unit, phase))
        if phase != "forward" or id(unit) not in self.stale:
            return waits
        self.stale.discard(id(unit))
        moved = self.refresh_bytes()
        if not moved:
            return waits
        tensors = sum(g.fp8 for g in unit.uses)
        kernels = tensors * self.s.weight_cast(self.c.costs.gpu.architecture).kernels
        seconds = self.c.costs.memory_s(moved * self.numel[id(unit)], kernels=kernels)
        done = self.c.builder.compute(
            "cast weights", "forward", seconds, launches=kernels, waits=waits
        )
        return (done,)

    def refresh_bytes(self) -> float:
        """Moved per element to bring a unit's copies up to date; 0: others do that."""
        architecture = self.c.costs.gpu.architecture
        if not self.s.primary_weights:
            whole = self.s.weight_cast(architecture).moved_bytes
            return whole if self.s.caches_weights else 0.0
        if self.s.recipe == "mxfp8":
            return 2.0 + self.s.weight_copies(architecture)
        return 2.0 if self.s.transposes(architecture) else 0.0

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """After a forward's last unit, its amax values."""
        self.inner.after(unit, phase, op)
        if phase == "forward" and unit is self.c.units[-1]:
            self._new_scales(phase, (op,))

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Nothing of its own."""
        return self.inner.backward_extra(unit)

    def end_backward(self) -> None:
        """After a backward, its amax values."""
        self._new_scales("backward", self.c.builder.last_on("compute"))
        self.inner.end_backward()

    def _new_scales(self, phase: str, waits: Sequence[int]) -> None:
        if self.s.recipe != "delayed" or not self.linears:
            return
        b, mesh = self.c.builder, self.c.plan.mesh
        group = "dp" if self.c.ranks > 1 else "tp" if mesh.tp > 1 else ""
        if group:
            size = AMAX_VALUES[phase] * self.linears * SCALAR_BYTES
            call = Call("all_reduce", group, size)
            # Megatron has a group of its own for it, with a stream of its own (fp8_group)
            own = "comm:amax" if self.c.plan.engine == "megatron" else None
            waits = (b.collective("all-reduce amax", call, waits=waits, stream=own),)
        seconds = self.c.costs.memory_s(0.0, kernels=UPDATE_KERNELS)
        b.compute("new scales", "collective", seconds, launches=UPDATE_KERNELS, waits=waits)

    def reduce_gradients(self) -> None:
        """Nothing of its own."""
        self.inner.reduce_gradients()

    def step(self) -> None:
        """Nothing of its own."""
        self.inner.step()
