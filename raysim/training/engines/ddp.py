"""Torch's ``DistributedDataParallel``: replicated states, bucketed all-reduce in backward.

Sources: ``torch/nn/parallel/distributed.py``, ``torch/csrc/distributed/c10d/reducer.cpp``. Gradient
accumulation runs under ``no_sync``, as Hugging Face's Trainer and the documentation do it, unless
the plan says otherwise.

Not modelled: unused-parameter search, buffer broadcasts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from raysim.perf.host import UNSCALE_S, UNSCALE_TENSOR_S
from raysim.perf.optimizer import optimizer_key
from raysim.training.engines import sparse
from raysim.training.engines.context import EngineContext
from raysim.training.engines.weight_copies import WeightCopies
from raysim.training.layers.sections import Unit
from raysim.training.program import Call
from raysim.units import MIB

FIRST_BUCKET_BYTES = MIB
"""``dist._DEFAULT_FIRST_BUCKET_BYTES``, of the default cap only: any other cap is every bucket's
(``distributed.py``, ``_BucketSizeConfig``)."""
DEFAULT_BUCKET_CAP_MB = 25.0
GRADIENT_USES = 3
"""Reads of a gradient in a step of Adam's, Adagrad's and their like: ``lerp`` and both factors of
``addcmul``; in SGD's or a fused one's there is one (collectives of torch 2.13, counted)."""


class Ddp:
    """Buckets launch in index order as soon as their last gradient is ready."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.width = context.weight_bytes
        self.held = sum(unit.gradient_bytes(self.width) for unit in context.units)
        """Bytes of all gradients: adapters may be fp32 beside 16-bit weights."""
        self.copies = WeightCopies(context)
        self.owners = {g.name: id(unit) for unit in context.units for g in unit.gradients}
        self.early: dict[str, int] = {}
        """Bytes of gradients of weights whose first user's backward is yet to come, by name."""
        self.flushes = self._assign_buckets()
        self.boundary = False
        self.works: list[int] = []

    def _assign_buckets(self) -> dict[int, list[int]]:
        """Bytes of the buckets that become complete when a unit's backward ends, by its ``id``."""
        cap = self.c.plan.ddp.bucket_cap_mb
        capacity = FIRST_BUCKET_BYTES if cap == DEFAULT_BUCKET_CAP_MB else round(cap * MIB)
        held = 0
        flushes: dict[int, list[int]] = {}
        last = 0
        for unit in reversed(self.c.units):
            for gradient in reversed(unit.gradients):
                held += gradient.size_bytes(self.width)
                last = id(unit)
                if held >= capacity:
                    flushes.setdefault(last, []).append(held)
                    held, capacity = 0, round(cap * MIB)
        if held:
            flushes.setdefault(last, []).append(held)
        return flushes

    def setup(self) -> None:
        """Weights, optimizer states and, unless gradients view into them, the buckets."""
        b, c = self.c.builder, self.c
        b.alloc("parameter", c.stored_bytes, "weights", tensors=c.weight_tensors)
        # torch.optim keeps its states in the parameters' dtype.
        sizes = (g.size_bytes(self.width) for u in c.units for g in u.gradients if not g.rows)
        made = tuple(part for size in sizes for part in c.states(size * c.state_bytes / 4))
        made += sparse.states(c, self.width)
        b.alloc("optimizer_state", sum(made), "optimizer states", tensors=made, lazy=len(made))
        if self.c.ranks > 1 and not self.c.plan.ddp.gradient_as_bucket_view:
            buckets = [size for flushed in self.flushes.values() for size in flushed]
            b.alloc("bucket", self.held, "DDP buckets", tensors=buckets)

    def begin_forward(self) -> None:
        """Nothing is due."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Only the boundary micro-batch communicates, or each."""
        self.boundary = boundary or self.c.plan.ddp.sync_every_micro_batch
        if self.c.plan.zeroes_late and self.c.builder.backward_index == 0:
            self.c.builder.free_all("gradient", "zero_grad")

    def alike(self) -> Hashable:
        """Not while autocast's copies come and go, nor where buckets are reduced."""
        communicates = self.boundary and self.c.ranks > 1
        if self.copies.on or communicates:
            return None
        return self.c.builder.backward_index == 0

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """The first backward of a step allocates the gradients; autocast copies the weights."""
        if phase == "backward":
            self._begin_shared(unit)
        if phase == "backward" and self.c.builder.backward_index == 0:
            self._end_shared(unit)
            self.c.alloc_gradients(unit)
        elif phase == "backward":
            sparse.grow(self.c, unit, self.width)
        self.copies.before(unit, phase)
        return ()

    def _begin_shared(self, unit: Unit) -> None:
        """Autograd sums the gradients of a weight's users, and adds them to it at the first's."""
        for use in unit.uses:
            name, size = use.name, use.size_bytes(self.width)
            if (
                use.tied
                and name not in self.early
                and self.owners.get(name) not in {None, id(unit)}
            ):
                self.early[name] = size
                self.c.builder.alloc("temporary", size, f"gradient of {name}")

    def _end_shared(self, unit: Unit) -> None:
        for gradient in unit.gradients:
            size = self.early.pop(gradient.name, 0)
            self.c.builder.free("temporary", size, f"gradient of {gradient.name}")

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """Launch the buckets this unit completed."""
        if phase == "backward":
            self._end_shared(unit)
        self.copies.after(unit, phase)
        if phase != "backward" or not self.boundary or self.c.ranks == 1:
            return
        for size in self.flushes.get(id(unit), ()):
            call = Call("all_reduce", "dp", size)
            self.works.append(self.c.beside("all-reduce gradients", call, (op,)))

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Copy into the bucket, or accumulate into an existing gradient."""
        if not unit.gradients:
            return 0.0, 0
        copies = self.boundary and self.c.ranks > 1
        accumulates = self.c.builder.backward_index > 0
        cast_bytes, cast = self.copies.back(unit)
        tensors = len(unit.gradients) * (copies + accumulates) + cast
        if not tensors:
            return 0.0, 0
        moved = cast_bytes + 3.0 * unit.gradient_bytes(self.width) * (copies + accumulates)
        return self.c.costs.memory_s(moved, kernels=tensors), tensors

    def end_backward(self) -> None:
        """Compute waits for every bucket, unless other stages wait for the gradient behind it."""
        if self.c.plan.mesh.pp == 1:
            self._finish()

    def _finish(self) -> None:
        """Compute waits for every bucket, then copies the averages back."""
        if not self.works:
            return
        moved = 2.0 * self.held
        self.c.builder.compute(
            "copy buckets back",
            "backward",
            self.c.costs.memory_s(moved, kernels=len(self.works)),
            launches=len(self.works),
            waits=tuple(self.works),
        )
        self.works = []

    def reduce_gradients(self) -> None:
        """Of a pipeline, the buckets in flight end here, as in Megatron's ``finish_grad_sync``."""
        self._finish()

    def _unscale(self) -> None:
        """``GradScaler.step``: multiplies and checks all gradients, then asks what was found."""
        c = self.c
        seconds = c.costs.memory_s(2.0 * self.held, kernels=4)
        host_s = c.costs.on_host_s(UNSCALE_S + c.tensors * UNSCALE_TENSOR_S)
        done = c.builder.compute("unscale gradients", "optimizer", seconds, host_s=host_s)
        c.builder.sync("found_inf.item()", (done,))

    def _clip(self) -> None:
        """``clip_grad_norm_`` reads all gradients, then multiplies them, whatever the norm was."""
        c, norms = self.c, 3  # of each tensor, stacked, of all
        seconds = c.costs.memory_s(3.0 * self.held, kernels=norms + 1)
        host_s = c.costs.host.clipping_s(c.tensors)
        c.builder.compute("clip gradients", "optimizer", seconds, host_s=host_s)

    def _sum_replicated(self) -> None:
        """Of ``DTensor`` weights that are whole on several ranks, each of which saw a part.

        Their gradients stay sums over ranks; each operator of the optimizer that reads one has it
        summed for itself.
        """
        c, o = self.c, self.c.plan.optimizer
        sgd = optimizer_key(o.type, momentum=o.momentum).startswith("sgd")
        uses = 1 if o.fused or sgd else GRADIENT_USES
        waits = c.builder.last_on("compute")
        for unit in c.units:
            for call in (e for e in unit.exchanges.after_backward if e.of_weights):
                summed = Call(call.op, call.group, call.size_bytes)
                for _ in range(uses):
                    waits = (c.builder.collective(f"all-reduce {unit.name}", summed, waits=waits),)
        c.builder.compute("gradients summed", "collective", 0.0, launches=0, waits=waits)

    def step(self) -> None:
        """torch's optimizer over all gradients, then ``zero_grad``, which lets go of them."""
        b, c = self.c.builder, self.c
        if any(e.of_weights for u in c.units for e in u.exchanges.after_backward):
            self._sum_replicated()
        if c.plan.ddp.grad_scaler:
            self._unscale()
        if c.plan.gradient_clipping > 0:
            self._clip()
            if c.plan.mesh.pp > 1:
                c.scalar_all_reduce("gradient norm", sharded=False)
        dense = [g for u in c.units for g in u.gradients if not g.rows]
        numel = sum(g.numel for g in dense)
        if dense:
            c.optimizer_step(
                numel,
                low_precision_copy=False,
                sizes=tuple(g.numel for g in dense),
                element_bytes=sum(g.size_bytes(self.width) for g in dense) / max(1, numel),
            )
        sparse.step(c, self.width)
        if not c.plan.zeroes_late:
            b.free_all("gradient", "zero_grad")
