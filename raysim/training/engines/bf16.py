"""DeepSpeed's BF16_Optimizer: sharded fp32 states, but an unsharded gradient accumulation buffer.

Runs for stage 1 with bf16 and ``data_types.grad_accum_dtype`` fp32, and for bf16 pipelines at stage
0. Source: ``deepspeed/runtime/bf16_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Unit
from raysim.training.program import Call


class Bf16Optimizer:
    """Gradients are added into a flat buffer after each backward and reduced once, exposed."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.accum_bytes = COMPUTE_DTYPE_BYTES[context.plan.grad_accum_dtype or "bf16"]
        self.groups = context.flat_groups
        self.own = sum(g.own for g in self.groups)
        self.made: list[Unit] = []
        """Units whose low-precision gradients this backward has made."""

    def setup(self) -> None:
        """bf16 weights, the whole accumulation buffer, this rank's slice of master and states."""
        b, c = self.c.builder, self.c
        own, parts = self.own, [g.own for g in self.groups]
        c.flatten_weights()
        low = [part * c.weight_bytes for part in parts]
        b.scratch(own * c.weight_bytes, "slice of the weights", low)
        sums = [g.numel * self.accum_bytes for g in self.groups]
        b.alloc("gradient", c.numel * self.accum_bytes, "accumulation buffer", tensors=sums)
        masters = [part * c.master_bytes for part in parts]
        made = [size for part in parts for size in c.states(part * c.state_bytes)]
        b.alloc(
            "optimizer_state", own * (c.master_bytes + c.state_bytes), "optimizer states",
            tensors=(*masters, *made), lazy=len(made),
        )  # fmt: skip
        b.free_scratch(own * c.weight_bytes, "slice of the weights")

    def begin_forward(self) -> None:
        """Nothing is due."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Every micro-batch is alike."""

    def alike(self) -> Hashable:
        """Every pass is."""
        return ()

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Backward makes low-precision gradients that live until they are folded in."""
        if phase == "backward" and unit.gradients:
            self.c.alloc_gradients(unit)
            self.made.append(unit)
        return ()

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """No hooks without ``immediate_grad_update``."""

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Adding into the accumulation buffer, one kernel per tensor."""
        moved = unit.numel * (self.c.weight_bytes + 2.0 * self.accum_bytes)
        tensors = len(unit.gradients)
        return (self.c.costs.memory_s(moved, kernels=tensors), tensors) if tensors else (0.0, 0)

    def end_backward(self) -> None:
        """Low-precision gradients are cleared once folded in."""
        for unit in self.made:
            self.c.builder.free("gradient", unit.numel * self.c.weight_bytes, unit.name)
        self.made.clear()

    def reduce_gradients(self) -> None:
        """Cast to the wire's dtype, one all-reduce of each flat group, copy back."""
        c, b = self.c, self.c.builder
        for group in self.groups if c.ranks > 1 else ():
            wire = group.numel * c.comm_bytes
            b.alloc("bucket", wire, "gradients on the wire")
            copy_s = c.costs.memory_s(group.numel * (self.accum_bytes + c.comm_bytes))
            done = b.compute("cast gradients", "collective", copy_s)
            if group.ranks > 1:
                call = Call("all_reduce", group.group, wire)
                done = b.collective("all-reduce gradients", call, waits=(done,))
            b.compute("copy back", "collective", copy_s, waits=(done,))
            b.free("bucket", wire, "gradients on the wire")

    def step(self) -> None:
        """Norm over the whole buffer, the optimizer on the own slice, all-gather of the weights."""
        c, b = self.c, self.c.builder
        c.gradient_norm(self.own * float(self.accum_bytes), 1, groups=c.expert_groups)
        done = c.optimizer_step(self.own, low_precision_copy=True)
        for group in self.groups:
            if group.ranks > 1:
                call = Call("all_gather", group.group, group.own * group.ranks * c.weight_bytes)
                work = b.collective("all-gather weights", call, waits=(done,))
                done = b.compute("weights ready", "collective", 0.0, launches=0, waits=(work,))
