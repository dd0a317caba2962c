"""Megatron-core's ``DistributedDataParallel`` and optimizers over contiguous buffers.

Weight gradients are added to an fp32 buffer by the products themselves; the buffer is reduced after
the last backward, or bucket by bucket beside it (``overlap_grad_reduce``). With the distributed
optimizer a rank steps its slice, and low-precision weights are gathered afterwards, or ahead of
their use in the next forward (``overlap_param_gather``), bucket by bucket or, of a rank's several
stages, stage by stage; with several instances of it slices are
those of fewer ranks, and summed over the instances. Experts have buffers of their own, shared by
fewer ranks. Sources: ``megatron/core/distributed/param_and_grad_buffer.py``,
``optimizer/distrib_optimizer.py``, ``finalize_model_grads.py``.

Not modelled: gradients of norms summed over tensor-parallel ranks (a few kilobytes), several
instances under context or expert parallelism, precision-aware optimizer states, the nan check of
gradients.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from raysim.errors import ScenarioError
from raysim.models.table import Module
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Unit
from raysim.training.program import COMPUTE, Call
from raysim.units import MIB

BUCKET_NUMEL = 40_000_000
BUCKET_NUMEL_PER_RANK = 1_000_000
MASTER_BYTES = 4.0
WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
WORKSPACE_BYTES_ELSEWHERE = 4 * MIB
"""``get_cublas_workspace_size_bytes`` of Transformer Engine."""
GROUPED_STREAMS = 4
OUTPUT_LAYER = "ColumnParallelLinear"
"""Megatron's class of it; its products add to the buffer too (``linear_with_grad_accumulation``).
Other linears are Transformer Engine's."""


def overlapped_bucket_numel(ranks: int) -> int:
    """Elements of a bucket whose reduction overlaps (``distributed_data_parallel.py``)."""
    return max(BUCKET_NUMEL, BUCKET_NUMEL_PER_RANK * ranks)


@dataclass(slots=True)
class Bucket:
    """Gradients reduced together, and weights gathered together."""

    group: str
    ranks: int
    numel: int = 0
    fp8: int = 0
    """Of these, weights that are gathered in fp8."""
    units: list[int] = field(default_factory=list)
    """By ``id``, in the order their gradients become ready."""
    instances: str = ""
    """Group of the ranks that hold the same slice; empty: nobody else does."""
    gathered: int | None = None
    """Operation that brings its weights, while under way."""


class Megatron:
    """One stage's buffers, their reduction and the step."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.m = context.plan.megatron
        self.grad_bytes = context.plan.gradient_buffer_bytes
        self.buckets = self._fill_buckets()
        self.own = sum(self._own(bucket) for bucket in self.buckets)
        """Elements that this rank steps."""
        self.plain = {id(unit): self._plain_bytes(unit, "TE") for unit in context.units}
        """Bytes of gradients that are tensors of their own, by ``id`` of their unit."""
        self.added = {id(u): self._plain_bytes(u, "TE", OUTPUT_LAYER) for u in context.units}
        """Of these, those that are more than the empty tensor that autograd wants."""
        self.boundary = False
        self.works: list[int] = []
        self.fresh: set[int] = set()
        """Units, by ``id``, whose weights this step has not waited for yet."""
        self.steps = -1
        """Optimizer steps that had ended when this one began."""

    def _fill_buckets(self) -> list[Bucket]:
        """In order of readiness: from the last layer to the first, dense and experts apart."""
        mesh, filled, instances = self.c.plan.mesh, [], self._instances()
        shards = mesh.weight_ranks // instances
        for group, ranks, expert in (
            ("dp", mesh.weight_ranks, False), ("edp", mesh.expert_ranks, True),
        ):  # fmt: skip
            capacity = self.m.ddp_bucket_size or overlapped_bucket_numel(ranks)
            bucket: Bucket | None = None
            for unit in reversed(self.c.units):
                numel = sum(g.numel for g in unit.gradients if g.expert == expert)
                if not numel:
                    continue
                if bucket is None or (self.m.overlap_grad_reduce and bucket.numel >= capacity):
                    bucket = Bucket(group, ranks)
                    if instances > 1:
                        bucket = Bucket(
                            f"dp_shard:{shards}", shards, instances=f"dp_replicate:{shards}"
                        )
                    filled.append(bucket)
                bucket.numel += numel
                if self._gathers_fp8:
                    bucket.fp8 += sum(
                        g.numel for g in unit.gradients if g.fp8 and g.expert == expert
                    )
                bucket.units.append(id(unit))
        return filled

    def _instances(self) -> int:
        mesh, count = self.c.plan.mesh, self.m.num_distributed_optimizer_instances
        if count == 1 or not self._sharded:
            return 1
        if mesh.cp > 1 or mesh.ep > 1:
            raise ScenarioError(
                "several instances of the distributed optimizer are not simulated under context "
                "or expert parallelism; leave num_distributed_optimizer_instances out"
            )
        if mesh.dp % count:
            raise ScenarioError(
                f"num_distributed_optimizer_instances {count} does not divide {mesh.dp} "
                "data-parallel ranks"
            )
        return count

    def _own(self, bucket: Bucket) -> int:
        """Elements of a bucket that this rank steps."""
        return -(-bucket.numel // bucket.ranks) if self._sharded else bucket.numel

    @property
    def _sharded(self) -> bool:
        return self.m.use_distributed_optimizer

    def setup(self) -> None:
        """Weights, the gradient buffer, fp32 masters and states of what this rank steps."""
        b, c = self.c.builder, self.c
        b.alloc("parameter", self._stored_bytes(), "weights")
        b.alloc("gradient", c.numel * self.grad_bytes, "gradient buffer")
        b.alloc("optimizer_state", self.own * (MASTER_BYTES + c.state_bytes), "optimizer states")
        if self.m.gradient_accumulation_fusion:
            shapes = {s for u in c.units for m in u.modules for s in self._dummies(m)}
            size = sum(rows * columns for rows, columns in shapes) * c.weight_bytes
            b.alloc("temporary", size, "dummy weight gradients")
        b.alloc("temporary", self._workspace_bytes(), "Transformer Engine's cuBLAS workspaces")
        b.alloc("communication", self._user_buffer_bytes(), "user buffers")

    @property
    def _gathers_fp8(self) -> bool:
        """Whether weights travel in fp8; mxfp8 needs both layouts, made of 16 bits."""
        fp8 = self.c.plan.fp8
        return fp8 is not None and fp8.primary_weights and fp8.recipe != "mxfp8"

    def _stored_bytes(self) -> float:
        """Of all weights, in 16 bits or as primary fp8 weights in every layout."""
        c, fp8 = self.c, self.c.plan.fp8
        whole = c.stored_bytes
        if fp8 is None or not fp8.primary_weights:
            return whole
        numel = sum({g.name: g.numel for u in c.units for g in u.uses if g.fp8}.values())
        own_buffer = fp8.recipe == "mxfp8" and not fp8.reuses_gradient_buffer
        plain = whole if own_buffer else whole - numel * c.weight_bytes
        return plain + numel * fp8.weight_copies(c.costs.gpu.architecture)

    def _workspace_bytes(self) -> int:
        """One for its linears, one per stream of grouped products (``_NUM_MAX_CUBLAS_STREAMS``)."""
        modules = [m for u in self.c.units for m in u.modules]
        grouped = any(p.expert for m in modules for p in m.parameters)
        size = WORKSPACE_BYTES.get(self.c.costs.gpu.architecture, WORKSPACE_BYTES_ELSEWHERE)
        linears = any(m.cls.startswith("TE") for m in modules)
        return size * (linears + GROUPED_STREAMS * grouped)

    def _user_buffer_bytes(self) -> int:
        """One for each exchange of a layer, shared by all layers."""
        if not (self.m.tp_comm_overlap and self.c.plan.mesh.tp > 1):
            return 0
        units = [unit for unit in self.c.units if unit.modules[0].cls.startswith("TE")]
        sizes = {unit.modules[0].name: unit.exchanges.size_bytes("tp") for unit in units}
        return sum(sizes.values())

    def _dummies(self, module: Module) -> list[tuple[int, int]]:
        """Shapes of the empty gradients that Transformer Engine hands to autograd, one per shape.

        ``get_dummy_wgrad`` of its linears keeps them for ever; experts share one.
        """
        if not (module.cls.startswith("TE") or any(p.expert for p in module.parameters)):
            return []
        tp, found = self.c.plan.mesh.tp, []
        for p in module.parameters:
            shape = [-(-n // tp) if i == p.shard else n for i, n in enumerate(p.shape)]
            if len(shape) > 1:
                found.append((shape[-2], shape[-1]))
        return found

    def _plain_bytes(self, unit: Unit, *linears: str) -> int:
        """Gradients that pass through a tensor of their own: of all but fused linears."""
        fused = self.m.gradient_accumulation_fusion
        named = {
            p.name for m in unit.modules for p in m.parameters
            if fused and (m.cls.startswith(linears) or p.expert)
        }  # fmt: skip
        ends = tuple(named)
        numel = sum(g.numel for g in unit.gradients if not (ends and g.name.endswith(ends)))
        return numel * self.c.weight_bytes

    def begin_forward(self) -> None:
        """A step's first forward finds every bucket's weights to be gathered, as any step does."""
        ended = len(self.c.builder.program.step_ends)
        if not (self._sharded and self.m.overlap_param_gather) or ended == self.steps:
            return
        self.steps = ended
        self.fresh = {unit for bucket in self.buckets for unit in bucket.units if bucket.ranks > 1}
        for bucket in self.buckets:
            bucket.gathered = None

    def gather_ahead(self) -> None:
        """All buckets' weights, before their first forward of a step (``start_param_sync``)."""
        self.begin_forward()
        for bucket in reversed(self.buckets):
            if self.fresh and bucket.ranks > 1:
                self._gathered(bucket)

    def begin_backward(self, *, boundary: bool) -> None:
        """Only the last micro-batch's gradients are reduced."""
        self.boundary = boundary

    def alike(self) -> Hashable:
        """Not while weights are gathered, nor where buckets are reduced."""
        if self.fresh or (self.boundary and self.m.overlap_grad_reduce):
            return None
        return ()

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Weights on their way are waited for; the bucket behind is fetched meanwhile."""
        if phase == "backward":
            self.c.builder.alloc("gradient", self.plain[id(unit)], unit.name)
            return ()
        if phase != "forward" or id(unit) not in self.fresh:
            return ()
        self.fresh.discard(id(unit))
        waits = []
        for i, bucket in enumerate(self.buckets):
            if bucket.ranks > 1 and id(unit) in bucket.units:
                waits.append(self._gathered(bucket))
                behind = self.buckets[i - 1] if i else None
                if behind is not None and behind.group == bucket.group:
                    self._gathered(behind)
        return waits

    def _gathered(self, bucket: Bucket) -> int:
        """The all-gather of a bucket's weights, begun once a step."""
        if bucket.gathered is None:
            bucket.gathered = self._gather(bucket)
        return bucket.gathered

    def _gather(self, bucket: Bucket) -> int:
        size = (bucket.numel - bucket.fp8) * self.c.weight_bytes + bucket.fp8
        call = Call("all_gather", bucket.group, size)
        exchange = self.c.beside if self.m.overlap_param_gather else self.c.builder.collective
        return exchange("all-gather weights", call, waits=self.c.builder.last_on(COMPUTE))

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """A bucket whose last gradient is ready is reduced beside the rest of backward."""
        if phase != "backward":
            return
        self.c.builder.free("gradient", self.plain[id(unit)], unit.name)
        if self.boundary and self.m.overlap_grad_reduce:
            for bucket in self.buckets:
                if bucket.units[-1] == id(unit):
                    self._reduce(bucket, (op,))

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Gradients that fused products did not add themselves are added to the buffer."""
        plain = self.added[id(unit)]
        if not plain:
            return 0.0, 0
        numel = plain / self.c.weight_bytes
        moved = numel * (self.c.weight_bytes + 2.0 * self.grad_bytes)
        return self.c.costs.memory_s(moved, kernels=len(unit.gradients)), len(unit.gradients)

    def _reduce(self, bucket: Bucket, waits: Sequence[int]) -> None:
        """Scale by the number of replicas, then reduce-scatter, or all-reduce without shards."""
        b, size = self.c.builder, bucket.numel * self.grad_bytes
        if bucket.ranks == 1 and not bucket.instances:
            return
        ready = tuple(waits)
        if not self.m.ddp_average_in_collective:
            scale_s = self.c.costs.memory_s(2.0 * size)
            ready = (b.compute("scale gradients", "collective", scale_s, waits=ready),)
        op = "reduce_scatter" if self._sharded else "all_reduce"
        name = f"{op.replace('_', '-')} gradients"
        exchange = self.c.beside if self.m.overlap_grad_reduce else b.collective
        if bucket.ranks > 1:
            ready = (exchange(name, Call(op, bucket.group, size), waits=ready),)
        if bucket.instances:
            call = Call("all_reduce", bucket.instances, self._own(bucket) * self.grad_bytes)
            ready = (exchange("all-reduce over instances", call, waits=ready),)
        self.works.extend(ready)

    def end_backward(self) -> None:
        """Reduction is finished before the step."""

    def reduce_gradients(self) -> None:
        """What did not overlap is reduced now; then the compute stream waits for all."""
        b = self.c.builder
        if not self.m.overlap_grad_reduce:
            for bucket in self.buckets:
                self._reduce(bucket, b.last_on(COMPUTE))
        if self.works:
            works, self.works = tuple(self.works), []
            b.compute("gradients reduced", "collective", 0.0, launches=0, waits=works)

    def step(self) -> None:
        """Norm and clipping, the optimizer on this rank's part, weights to everybody."""
        c, b = self.c, self.c.builder
        if c.plan.gradient_clipping > 0:
            c.gradient_norm(self.own * MASTER_BYTES, 1, sharded=self._sharded)
            c.scan("clip gradients", 2.0 * self.own * MASTER_BYTES, 1)
        c.optimizer_step(self.own, low_precision_copy=True)
        if self._gathers_fp8:  # of its slice of 16-bit weights
            slices = sum(bucket.fp8 / bucket.ranks for bucket in self.buckets)
            tensors = sum(g.fp8 for u in c.units for g in u.gradients)
            c.scan("cast weights", 3.0 * slices, tensors)
        if self._sharded and not self.m.overlap_param_gather:
            works = [self._gather(bucket) for bucket in self.buckets if bucket.ranks > 1]
            if works:
                b.compute("weights ready", "collective", 0.0, launches=0, waits=works)
        zero_s = c.costs.memory_s(c.numel * self.grad_bytes)
        b.compute("zero gradient buffer", "optimizer", zero_s)
