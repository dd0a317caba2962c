"""InternEvo's ``HybridZeroOptimizer``: states divided by whole tensors, among few ranks or all.

Source: ``internlm/solver/optimizer/hybrid_zero_optim.py`` of July 2023. Gradients are summed over
all data-parallel ranks, whoever steps them, in buckets on a stream beside the last backward; before
each the host waits for the whole GPU (``_reduce_and_copy``), so that at most one is under way while
the next fills. Parameters go, the largest first, to the rank with the fewest elements
(``_partition_param_list``), so that with more ranks than tensors some have none and others one
embedding. Each owner steps torch's loop of Adam over one flat fp32 tensor, and broadcasts its flat
weights, one owner after the other (``broadcast_params``).

Simplifications: the rank with the most elements stands for all; the host waits for all checks of
its gradients together, not for one after the other. Not modelled: pipelines, later versions, which
reduce to owners and broadcast beside the next forward.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence

from raysim.errors import ScenarioError
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Gradient, Unit
from raysim.training.program import COMPUTE, Call
from raysim.training.states.zero import Bucket

MASTER_BYTES = 4.0
STREAM = "reduce"


def owned_numel(sizes: Iterable[int], ranks: int) -> list[int]:
    """Elements of every rank: each tensor, the largest first, goes to whoever has the fewest."""
    held = [(0, rank) for rank in range(ranks)]
    for size in sorted(sizes, reverse=True):
        least, rank = held[0]
        heapq.heapreplace(held, (least + size, rank))
    return [numel for numel, _ in sorted(held, key=lambda owner: owner[1])]


class HybridZero:
    """Buckets beside the last backward, the owner's step, and a broadcast per owner."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        settings, mesh = context.plan.internevo, context.plan.mesh
        if mesh.pp > 1:
            raise ScenarioError("InternEvo's pipelines are not simulated")
        ranks = context.ranks if settings.zero1 < 1 else settings.zero1
        if context.ranks % ranks:
            raise ScenarioError(
                f"zero1 {settings.zero1} does not divide {context.ranks} data-parallel ranks"
            )
        self.group = "dp" if ranks == context.ranks else f"dp_shard:{ranks}"
        self.owned = [numel for numel in owned_numel(context.sizes, ranks) if numel]
        self.own = max(self.owned)
        self.own_tensors = -(-context.tensors // len(self.owned))
        self.sharing = ranks
        self.bucket = Bucket(settings.reduce_bucket_size)
        self.boundary = False

    def setup(self) -> None:
        """Weights flat by owner, made on the host; this rank's masters and moments."""
        b, c = self.c.builder, self.c
        b.alloc(
            "parameter", c.stored_bytes, "weights",
            tensors=[numel * c.weight_bytes for numel in self.owned],
        )  # fmt: skip
        made = c.states(self.own * c.state_bytes)
        master = self.own * MASTER_BYTES
        b.alloc(
            "optimizer_state", master + sum(made), "optimizer states", tensors=(master, *made),
            lazy=len(made),
        )  # fmt: skip

    def begin_forward(self) -> None:
        """Nothing is due."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Only the last micro-batch's gradients are reduced (``skip_grad_reduce``)."""
        self.boundary = boundary

    def alike(self) -> Hashable:
        """Not where buckets are reduced; the first backward of a step takes memory."""
        return None if self.boundary else self.c.builder.backward_index == 0

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """The first backward of a step allocates the gradients."""
        self.c.alloc_first_gradients(unit, phase)
        return ()

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """A gradient that does not fit sends the bucket before it off."""
        if phase != "backward" or not self.boundary:
            return
        self.c.builder.hook(self.c.costs.host.gradient_s * len(unit.gradients))
        for gradient in reversed(unit.gradients):
            for full in self.bucket.add(gradient):
                self._reduce(full, (op,))

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """From the second micro-batch on, gradients are added to those held."""
        return self.c.added_gradients(unit)

    def end_backward(self) -> None:
        """What is left in the bucket waits for the step."""

    def _reduce(self, bucket: Sequence[Gradient], waits: Sequence[int]) -> None:
        """Once the GPU is done with everything: flattened, divided, summed, copied back."""
        c, b = self.c, self.c.builder
        b.synchronize("bucket")
        if c.ranks == 1:
            return
        size = sum(g.numel for g in bucket) * c.weight_bytes
        tensors = len(bucket)
        b.alloc("bucket", size, "flattened gradients", stream=STREAM)
        flat = c.aside("flatten gradients", 4.0 * size, STREAM, waits, launches=tensors, kernels=2)
        done = c.beside("all-reduce gradients", Call("all_reduce", "dp", size), (flat,))
        c.aside("copy back", 2.0 * size, STREAM, (done,), launches=tensors, kernels=tensors)
        b.free("bucket", size, "flattened gradients", used_on=STREAM)

    def reduce_gradients(self) -> None:
        """The last bucket, with nothing beside it."""
        b = self.c.builder
        if self.bucket.gradients:
            self._reduce(self.bucket.drain(), b.last_on(COMPUTE))
        b.synchronize("gradients reduced")

    def step(self) -> None:
        """Check, norm, flat fp32 gradients, Adam over what is owned; then weights to everybody.

        In bytes an element of 16 bits: the check casts (6) and sums (4), the norm casts (6) and
        squares (4); gradients are joined (4), cast (6) and scaled in fp32 (8).
        """
        c, b, own, tensors = self.c, self.c.builder, float(self.own), self.own_tensors
        c.check_overflow(10.0 * own, 2 * tensors)
        b.alloc("temporary", 4.0 * own, "fp32 gradients for their norm")
        c.gradient_norm(10.0 * own, tensors + 1, groups=[self.group])
        b.free("temporary", 4.0 * own, "fp32 gradients for their norm")
        flat = own * (c.weight_bytes + 4.0)
        b.alloc("temporary", flat, "flat gradients", tensors=(own * c.weight_bytes, 4.0 * own))
        c.scan("flatten and unscale", 18.0 * own, 3)
        b.free_all("gradient", "zero_grad")
        c.optimizer_step(own, low_precision_copy=True)
        b.free("temporary", flat, "flat gradients")
        waits = b.last_on(COMPUTE)
        if self.sharing > 1:
            works = [
                b.collective(
                    "broadcast weights",
                    Call("broadcast", self.group, numel * c.weight_bytes),
                    waits=waits,
                )
                for numel in self.owned
            ]
            b.compute("weights ready", "collective", 0.0, launches=0, waits=works)
        b.synchronize("step")
