"""DeepSpeed ZeRO stage 0: every rank keeps everything; gradients are all-reduced after backward.

Sources: ``deepspeed/runtime/engine.py`` (``allreduce_gradients``, ``buffered_allreduce_fallback``),
``runtime/fp16/fused_optimizer.py`` (FP16_Optimizer, also used for bf16 without pipeline).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from raysim.perf.optimizer import optimizer_key
from raysim.training.engines.context import EngineContext
from raysim.training.engines.weight_copies import WeightCopies
from raysim.training.layers.sections import Gradient, Unit
from raysim.training.program import Call
from raysim.training.states.zero import pack

SERIAL_OVERFLOW_KERNELS = 12
"""Per gradient, fp16's or bf16's, of ``CheckOverflow.has_overflow_serial`` (0.19): ``zero12``'s
``has_inf_or_nan``, whose flags are not added but looked at one by one."""
MEMORY_OPT_ALLREDUCE_SIZE = 500_000_000
"""Elements per all-reduce (``runtime/constants.py``)."""


class Replicated:
    """Flatten, all-reduce and copy back whole buckets on the compute stream: nothing overlaps."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.copies = WeightCopies(context)

    def setup(self) -> None:
        """Weights, master copy and optimizer states, all whole."""
        b, c = self.c.builder, self.c
        stored, held = c.stored_bytes, c.numel * (c.master_bytes + c.state_bytes)
        if c.plan.precision == "fp32":
            made = tuple(part for size in c.sizes for part in c.states(size * c.state_bytes))
            b.alloc("parameter", stored, "weights", tensors=c.weight_tensors)
            b.alloc("optimizer_state", held, "optimizer states", tensors=made, lazy=len(made))
            return
        if not self.flat:
            self._set_up_tensors(stored, held)
            return
        # FP16_Optimizer flattens clones of the weights, and steps once on zero gradients.
        flat, zeros = c.numel * c.weight_bytes, c.numel * c.master_bytes
        c.flatten_weights(clones=True)
        b.scratch(flat, "clone of the flat weights")
        parts = [g.numel for g in c.flat_groups]
        masters = [part * c.master_bytes for part in parts]
        moments = [size for part in parts for size in c.states(part * c.state_bytes)]
        b.alloc("optimizer_state", held, "optimizer states", tensors=(*masters, *moments))
        b.free_scratch(flat, "clone of the flat weights")
        # Taken before the moments; after them it needs a segment of its own all the same.
        b.scratch(zeros, "zero gradients")
        b.free_scratch(zeros, "zero gradients")

    def _set_up_tensors(self, stored: int, held: float) -> None:
        """FP16_UnfusedOptimizer clones each weight, and steps once on zero gradients."""
        b, c = self.c.builder, self.c
        masters = [numel * c.master_bytes for numel in c.sizes]
        low = [numel * c.weight_bytes for numel in c.sizes]
        made = [part for numel in c.sizes for part in c.states(numel * c.state_bytes)]
        b.alloc("parameter", stored, "weights", tensors=c.weight_tensors)
        b.scratch(max(low, default=0), "clone of a weight")
        b.free_scratch(max(low, default=0), "clone of a weight")
        b.scratch(sum(low), "zero gradients", low)
        b.scratch(sum(masters), "zero master gradients", masters)
        b.alloc("optimizer_state", held, "optimizer states", tensors=(*masters, *made))
        b.free_scratch(sum(low), "zero gradients")
        b.free_scratch(sum(masters), "zero master gradients")

    @property
    def flat(self) -> bool:
        """Whether the wrapper flattens weights and gradients: around FusedAdam only.

        Around other classes it is FP16_UnfusedOptimizer (``engine.py``,
        ``_configure_fp16_optimizer``); without mixed precision there is none.
        """
        plan = self.c.plan
        is_adam = optimizer_key(plan.optimizer.type) == "adam"
        return plan.precision != "fp32" and plan.optimizer.fused and is_adam

    def begin_forward(self) -> None:
        """Nothing is due."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Every micro-batch is alike."""

    def alike(self) -> Hashable:
        """The first backward of a step takes memory for the gradients."""
        return None if self.copies.on else self.c.builder.backward_index == 0

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """The first backward of a step allocates the gradients."""
        self.c.alloc_first_gradients(unit, phase)
        self.copies.before(unit, phase)
        return ()

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """No hooks of its own."""
        del op
        self.copies.after(unit, phase)

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """From the second micro-batch on, gradients are added to those held."""
        seconds, tensors = self.c.added_gradients(unit)
        moved, cast = self.copies.back(unit)
        cast_s = self.c.costs.memory_s(moved, kernels=cast) if cast else 0.0
        return seconds + cast_s, tensors + cast

    def end_backward(self) -> None:
        """Nothing is in flight."""

    def reduce_gradients(self) -> None:
        """One exposed all-reduce per bucket of up to 500 million elements; experts' behind."""
        c = self.c
        if c.ranks == 1:
            return
        kinds: dict[str | None, list[Gradient]] = {}
        for group in c.flat_groups:
            where = group.group if group.ranks > 1 else None
            kinds.setdefault(where, []).extend(group.gradients)
        for where, gradients in kinds.items():
            for bucket in pack(gradients, MEMORY_OPT_ALLREDUCE_SIZE):
                self._reduce(bucket, where)

    def _reduce(self, bucket: list[Gradient], group: str | None) -> None:
        """None: no other rank has these, but they are flattened and copied back all the same."""
        c, b = self.c, self.c.builder
        numel = sum(g.numel for g in bucket)
        flat = numel * c.comm_bytes
        b.alloc("bucket", flat, "flattened gradients")
        copy_s = c.costs.memory_s(numel * (c.weight_bytes + c.comm_bytes))
        done = b.compute("flatten gradients", "collective", copy_s, launches=len(bucket))
        if group is not None:
            call = Call("all_reduce", group, flat)
            done = b.collective("all-reduce gradients", call, waits=(done,))
        b.compute("copy back", "collective", copy_s, launches=len(bucket), waits=(done,))
        b.free("bucket", flat, "flattened gradients")

    def step(self) -> None:
        """FP16_Optimizer's step, or the plain optimizer in fp32."""
        c, b = self.c, self.c.builder
        low_precision = c.plan.precision != "fp32"
        held = c.numel * c.weight_bytes
        if low_precision:
            shares = c.plan.moe_groups and c.plan.mesh.ep > 1
            kernels = SERIAL_OVERFLOW_KERNELS * c.tensors
            c.check_overflow(2.0 * held, kernels, sharded=shares, groups=["ep"])
            c.gradient_norm(held, c.tensors, groups=c.expert_groups if self.flat else ())
        elif c.plan.gradient_clipping > 0:  # engine.py, clip_fp32_gradients averages over replicas
            c.gradient_norm(held, c.tensors)
        flat = 4.0 * c.numel if low_precision else 0.0
        parts = [4.0 * numel for numel in c.sizes] if low_precision and not self.flat else ()
        b.alloc("temporary", flat, "flat fp32 gradients", tensors=parts)
        if low_precision:
            seconds = c.costs.memory_s(c.numel * (c.weight_bytes + 4.0 + 8.0), kernels=2)
            b.compute("flatten and unscale", "optimizer", seconds, launches=c.tensors)
        c.optimizer_step(
            c.numel, low_precision_copy=low_precision, sizes=() if low_precision else c.sizes
        )
        b.free("temporary", flat, "flat fp32 gradients")
        b.free_all("gradient", "zero_grad")
