"""The optimizer step on the host: norm, unscale, DeepSpeedCPUAdam, cast, copy back.

Sources: ``deepspeed/runtime/zero/stage_1_and_2.py`` and ``stage3.py`` (offload branches),
``csrc/adam/cpu_adam_impl.cpp``. All ranks of a node share its memory bandwidth; the GPU idles.
"""

from __future__ import annotations

from raysim.training.engines.context import FLAG_BYTES, EngineContext
from raysim.training.program import CPU, H2D


def cpu_step(c: EngineContext, own: int, *, update_gpu: bool, overflow: bool) -> None:
    """Step ``own`` elements on the CPU after their gradients arrived; copy weights to the GPU."""
    b = c.builder
    arrived = (*b.last_on("d2h"), *b.last_on("compute"))
    if arrived:
        b.sync("wait for gradients", arrived)
    passes = c.costs.host_pass_s(3 * 4.0 * own, c.cpu, c.ranks_per_node)
    b.background("norm and unscale on CPU", CPU, "offload", passes)
    if overflow:
        c.scalar_all_reduce("overflow", FLAG_BYTES)
    c.scalar_all_reduce("gradient norm")
    seconds = c.costs.cpu_adam_s(own, c.cpu, c.ranks_per_node, bound=False)
    adam = b.background("DeepSpeedCPUAdam", CPU, "offload", seconds, b.last_on(CPU))
    b.sync("wait for CPU Adam", (adam,))
    if update_gpu:
        back = c.copy_s(
            own * float(c.weight_bytes), "h2d", pinned=c.plan.zero.offload_optimizer.pin_memory
        )
        done = b.copy("weights to GPU", H2D, back, (adam,))
        b.compute("weights arrived", "copy", 0.0, launches=0, waits=(done,))
