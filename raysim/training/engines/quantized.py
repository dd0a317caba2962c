"""qgZ: gradients in int4, all-to-all within the node and then across nodes, tensor by tensor.

Source: ``all_to_all_quant_reduce`` of ``deepspeed/runtime/comm/coalesced_collectives.py`` of 0.19,
``csrc/quantization``. Vectors, and what does not divide evenly, are reduce-scattered alone.
"""

from __future__ import annotations

from raysim.errors import ScenarioError
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Gradient
from raysim.training.program import Call
from raysim.training.states.quantization import gradient_hops
from raysim.training.states.zero import shard_numel

HALF = 2
"""Bytes of what the kernels read and write: always fp16."""


class QuantizedReduction:
    """Reduces a bucket's gradients one after the other."""

    def __init__(self, c: EngineContext) -> None:
        self.c = c
        self.local = min(c.ranks_per_node, c.ranks)
        self.on = c.plan.zero.zero_quantized_gradients and c.ranks > self.local
        """Within one node DeepSpeed reduce-scatters the bucket as ever."""
        if self.on and c.ranks % self.local:
            raise ScenarioError(
                f"zero_quantized_gradients: {c.ranks} ranks do not fill nodes of {self.local}; "
                "DeepSpeed's all-to-all groups need whole nodes"
            )
        model = c.plan.model
        self.shapes = {name: p.shape for name, p in model.parameters()} if self.on else {}
        self.places = {name: i for i, name in enumerate(model.built)} if self.on else {}

    def reduce(self, bucket: list[Gradient], stream: str, ready: int) -> int:
        """In the order in which the parameters were built; returns the last operation."""
        for gradient in sorted(bucket, key=lambda g: self.places[g.name]):
            hops = gradient_hops(self.shapes[gradient.name], self.c.ranks, self.local)
            if hops is None:
                ready = self._alone(gradient, stream, ready)
                continue
            numel, local = gradient.numel, self.local
            b = self.c.builder
            temporary = 2 * hops[0].payload_bytes + HALF * numel // local
            b.alloc("communication", temporary, "quantized gradients", stream=stream)
            # Quantized; then summed over the node and quantized again; then whole for the last sum.
            moved = (
                HALF * numel + hops[0].payload_bytes,
                hops[0].payload_bytes + hops[1].payload_bytes,
            )
            groups = f"dp_shard:{local}", f"dp_replicate:{local}"
            for hop, size, group in zip(hops, moved, groups, strict=True):
                ready = self._kernel("quantize gradients", size, stream, ready)
                for part in hop:
                    call = Call("all_to_all", group, part)
                    ready = self.c.beside("all-to-all gradients", call, (ready,))
            last = hops[1].payload_bytes + 3 * HALF * numel // local
            ready = self._kernel("dequantize and sum", last, stream, ready, kernels=3)
            b.free("communication", temporary, "quantized gradients", used_on=stream)
        return ready

    def _kernel(self, name: str, moved: float, stream: str, ready: int, *, kernels: int = 1) -> int:
        return self.c.aside(name, moved, stream, (ready,), launches=kernels, kernels=kernels)

    def _alone(self, gradient: Gradient, stream: str, ready: int) -> int:
        c = self.c
        wire = shard_numel(gradient.numel, c.ranks) * c.ranks * c.comm_bytes
        packed = self._kernel("divide gradient", 2.0 * wire, stream, ready)
        call = Call("reduce_scatter", "dp", wire)
        return c.beside("reduce-scatter gradients", call, (packed,))
