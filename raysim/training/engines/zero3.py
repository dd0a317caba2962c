"""ZeRO stage 3: parameters, gradients and states sharded; gathered module by module.

Sources: ``deepspeed/runtime/zero/stage3.py``, ``parameter_offload.py``,
``partition_parameters.py``, ``runtime/comm/coalesced_collectives.py`` of 0.19. Gathers and
reduce-scatters share one communicator, so they queue behind each other; at most two gathers and two
reductions may be outstanding before the host waits. ``gathers`` makes parameters whole, also hpZ's,
qwZ's and MiCS's way; ``quantized`` reduces gradients as qgZ does; ``offload`` steps on the host.

Not modelled: leaf modules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from raysim.errors import ScenarioError
from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.engines.context import NORM_BYTES, NORM_KERNELS, EngineContext
from raysim.training.engines.coordinator import Coordinator, Walk, persistent_names
from raysim.training.engines.gathers import Gathers
from raysim.training.engines.muon import gather_matrices
from raysim.training.engines.offload import GradientsToHost, step_sub_groups
from raysim.training.engines.quantized import QuantizedReduction
from raysim.training.engines.superoffload import AdamProcess
from raysim.training.engines.swapper import Disk, OptimizerSwapper, ParameterSwapper
from raysim.training.engines.weight_copies import Wire
from raysim.training.layers.sections import Gradient, Unit, weights_of
from raysim.training.program import D2H, Call
from raysim.training.states.quantization import weight_groups
from raysim.training.states.swapping import SubGroup, place
from raysim.training.states.zero import Buckets, shard_numel

MAX_ONGOING = 2
"""Outstanding fetch events, and outstanding reduce events (hard-coded in DeepSpeed)."""
FP64_BYTES = 8
"""Stage 3 sums norms in fp64 (zero/utils.py, get_norm_dtype)."""


class Standing(NamedTuple):
    """Where a rank stands between two passes; operations are told by how far back they are."""

    walk: Walk
    arriving: tuple[tuple[str, int], ...]
    second: frozenset[str]
    fetches: tuple[int, ...]
    must_wait: tuple[int, ...]
    boundary: bool


class ZeroThree:
    """Drives the coordinator and emits what it decides."""

    def __init__(self, context: EngineContext, visits: Sequence[Unit]) -> None:
        c = self.c = context
        self.zero = c.plan.zero
        self.n = self.zero.shard_ranks(c.ranks)
        stored = tuple(weights_of(c.units).values())
        self.scales = [round(g.numel * g.whole_bytes) for g in stored if g.whole_bytes]
        if self.scales and self.zero.zero_quantized_weights:
            raise ScenarioError(
                "zero_quantized_weights would round the bytes that hold 4-bit weights, as if they "
                "were 16-bit weights; leave it out"
            )
        parameters = self.parameters = self._packed(stored)
        self.persistent = persistent_names(parameters, self.zero)
        self.accum_bytes = COMPUTE_DTYPE_BYTES[c.plan.grad_accum_dtype or c.plan.precision]
        self.groups = self._groups()
        disk = Disk(c)
        self.swapper = ParameterSwapper(c, disk, self.groups)
        self.gathers = Gathers(c, parameters, self.swapper)
        self.group = self.gathers.group
        self.quantized = QuantizedReduction(c)
        self.offload = self.zero.offload_optimizer.device != "none"
        self.offload_param = self.zero.offload_param.device != "none"
        self.optimizer_swapper = OptimizerSwapper(c, disk, self.groups)
        self.process = AdamProcess(c)
        self.to_host = GradientsToHost(c, disk, self.groups, self.accum_bytes, self.process)
        forward = len(c.units)
        # The root module owns nothing, but its hooks run first in both passes and prefetch.
        trace = [(), *(self._packed(u.uses) for u in visits[:forward])]
        if len(visits) > forward:
            trace += [(), *(self._packed(u.uses) for u in visits[forward:])]
        for visit in trace if self.zero.zero_quantized_weights and self.n > 1 else ():
            # The first step, which records the trace, gathers module by module.
            if visit:
                weight_groups(sum(shard_numel(p.numel, self.n) for p in visit))
        self.coordinator = Coordinator(trace, self.persistent, self.zero, self.swapper.away)
        self.own = sum(g.numel for g in self.groups)
        self.boundary = False
        self.fetch_events: deque[int] = deque()
        self.reduce_events: deque[int] = deque()
        self.wire = Wire(context)
        self.bucket = Buckets(self.zero.reduce_bucket_size, self.wire.width)
        self.filled = -1
        """Operation after which the bucket's last gradient was there: its stream waits for that."""
        self.must_wait: tuple[int, ...] = ()

    def _packed(self, parameters: tuple[Gradient, ...]) -> tuple[Gradient, ...]:
        """As ``ds_numel`` counts them: bitsandbytes' weights are elements of the others' type."""
        return tuple(p.packed(self.c.weight_bytes) for p in parameters)

    def _groups(self) -> tuple[SubGroup, ...]:
        """Sub-groups of this rank's shards, in the model's order."""
        c = self.c
        shards = (
            Gradient(g.name, shard_numel(g.numel, self.n)) for u in c.units for g in u.gradients
        )
        return place(shards, self.zero, low_bytes=c.weight_bytes, master_bytes=c.master_bytes)

    def _shards(self) -> tuple[list[int], list[int]]:
        """Bytes of each shard of a frozen weight, and of those that are trained."""
        trained = {g.name for u in self.c.units for g in u.gradients}
        shards: tuple[list[int], list[int]] = ([], [])
        for p in self.parameters:
            size = shard_numel(p.numel, self.n) * self.c.weight_bytes
            shards[p.name in trained].append(size)
        return shards

    def setup(self) -> None:
        """Shards of weights, gradients, master and states; the permanent reduce bucket."""
        b, c = self.c.builder, self.c
        if not self.offload_param:
            frozen, shards = self._shards()
            b.alloc("parameter", sum(frozen), "shards of frozen weights", tensors=frozen)
            # Partitioned one by one; those that are trained are then moved into one buffer.
            b.scratch(sum(shards), "shards as partitioned", shards)
            b.alloc("parameter", sum(shards), "weight shards")
            b.free_scratch(sum(shards), "shards as partitioned")
        b.alloc("parameter", sum(self.scales), "scales of weights", tensors=self.scales)
        if not self.offload:
            b.alloc("gradient", self.own * self.accum_bytes, "gradient shards")
        stepped = [group.numel for group in self.groups if group.on_gpu]
        if stepped:
            own = sum(stepped)
            masters = [numel * c.master_bytes for numel in stepped]
            made = [part for numel in stepped for part in c.states(numel * c.state_bytes)]
            b.alloc(
                "optimizer_state", own * (c.master_bytes + c.state_bytes), "states",
                tensors=(*masters, *made), lazy=len(made),
            )  # fmt: skip
            b.scratch(max(masters, default=0.0), "master weights before they are cloned")
            b.free_scratch(max(masters, default=0.0), "master weights before they are cloned")
            if self.offload:
                b.alloc("gradient", sum(masters), "master gradients", tensors=masters)
        self.gathers.hold_second(p.name for p in self.parameters)
        if self.zero.contiguous_gradients:
            for width in self.wire.widths:
                b.alloc("bucket", self.zero.reduce_bucket_size * width, "reduce bucket")

    def begin_forward(self) -> None:
        """The trace starts over with every forward."""
        self.coordinator.reset()
        self._visit_root(self.c.costs.host.hook_s)

    def begin_backward(self, *, boundary: bool) -> None:
        """The boundary micro-batch sends fp32 gradients to the host."""
        self.boundary = boundary
        self._visit_root(self.c.costs.host.hook_backward_s)

    def _visit_root(self, hook_s: float) -> None:
        self.c.builder.hook(hook_s)
        self._prefetch(self.coordinator.fetch().prefetch)

    def _prefetch(self, parameters: Sequence[Gradient]) -> None:
        """Gather ahead; then ask NVMe for what comes after that."""
        self._all_gather(parameters, "prefetch")
        if self.swapper.sizes and self.zero.stage3_prefetch_bucket_size:
            numel = self.gathers.sizes
            in_flight = sum(numel[name] for name in self.coordinator.in_flight)
            self.swapper.prefetch(self.coordinator.upcoming, in_flight)

    def alike(self) -> Standing | None:
        """Not where the host or a disk has a part in it."""
        if self.offload or self.offload_param or self.swapper.sizes:
            return None
        if self.c.plan.separate_gathers:
            return None
        assert not self.bucket.gradients, "gradients are left over from the last backward"
        assert not self.reduce_events, "reductions are left over from the last backward"
        here = len(self.c.builder.program.ops)
        return Standing(
            walk=self.coordinator.walk,
            arriving=tuple([(name, here - op) for name, op in self.gathers.arriving.items()]),
            second=frozenset(self.gathers.second),
            fetches=tuple([here - op for op in self.fetch_events]),
            must_wait=tuple([here - op for op in self.must_wait]),
            boundary=self.boundary,
        )

    def resume(self, state: Hashable) -> None:
        """From there on."""
        assert isinstance(state, Standing), f"ZeRO-3 cannot go on from {state}"
        here = len(self.c.builder.program.ops)
        self.coordinator.walk = state.walk
        self.gathers.arriving = {name: here - back for name, back in state.arriving}
        self.gathers.second = set(state.second)
        self.fetch_events = deque(here - back for back in state.fetches)
        self.must_wait = tuple([here - back for back in state.must_wait])

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Gather what is missing, wait for it, prefetch; make room for gradients."""
        b, host = self.c.builder, self.c.costs.host
        # Every module has hooks, with parameters or without.
        b.hook(unit.calls * (host.hook_backward_s if phase == "backward" else host.hook_s))
        fetch = self.coordinator.fetch()
        self._all_gather(fetch.missing, unit.name)
        waits = [*self.must_wait]
        self.must_wait = ()
        arrived: dict[int, None] = {self.gathers.arriving.pop(p.name): None for p in fetch.wait_for}
        for index in arrived:
            if len(self.fetch_events) > MAX_ONGOING:
                b.sync("limit outstanding fetches", (self.fetch_events.popleft(),))
            waits.append(index)
            self.fetch_events.append(index)
        if arrived and self.c.plan.separate_gathers:
            b.synchronize("parameters to arrive")
            self.fetch_events.clear()
        self._prefetch(fetch.prefetch)
        if phase == "backward":
            self._alloc_gradients(unit)
        return waits

    def _all_gather(self, parameters: Sequence[Gradient], what: str) -> None:
        if parameters:
            self.gathers.all_gather(parameters, what)
            for p in parameters if self.swapper.sizes else ():
                if p.name in self.persistent:
                    self.swapper.release(p.name)  # never partitioned again before the step

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """Release what the coordinator lets go; feed gradients to the bucket."""
        for p in self.coordinator.release(self.coordinator.step - 1):
            self.gathers.drop(p.name)
        if phase != "backward":
            return
        self.c.builder.hook(self.c.costs.host.gradient_s * len(unit.gradients))
        for gradient in self._ready_order(unit):
            for full in self.bucket.add(gradient):
                self._reduce(full, op if self.c.plan.separate_gathers else self.filled)
            self.filled = op
            if gradient.numel <= self.zero.reduce_bucket_size:
                self.c.builder.free("gradient", self._gradient_bytes(gradient), gradient.name)

    def _gradient_bytes(self, gradient: Gradient) -> int:
        """Of the type in which its weight was gathered."""
        return gradient.numel * self.gathers.width(gradient)

    def _alloc_gradients(self, unit: Unit) -> None:
        if not self.wire.narrow:
            self.c.alloc_gradients(unit)
            return
        tensors = [self._gradient_bytes(g) for g in reversed(unit.gradients)]
        self.c.builder.alloc("gradient", sum(tensors), unit.name, tensors=tensors)

    def _ready_order(self, unit: Unit) -> Sequence[Gradient]:
        """Autograd's order: bias before weight, but for the memory-efficient linear's."""
        own_linear = self.zero.memory_efficient_linear and unit.modules[0].cls == "Linear"
        return unit.gradients if own_linear else unit.gradients[::-1]

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Each gradient is copied into the bucket."""
        tensors = len(unit.gradients)
        if not tensors:
            return 0.0, 0
        moved = 2.0 * sum(map(self._gradient_bytes, unit.gradients))
        return self.c.costs.memory_s(moved, kernels=tensors), tensors

    def _reduce(self, bucket: list[Gradient], ready: int) -> None:
        """Scatter a bucket's sums, add them into the gradient shard, on the GPU or the host."""
        c, b = self.c, self.c.builder
        if len(self.reduce_events) > MAX_ONGOING:
            b.sync("limit outstanding reductions", (self.reduce_events.popleft(),))
        own, width = sum(shard_numel(g.numel, self.n) for g in bucket), self.wire.width(bucket[0])
        if self.quantized.on:
            wire, done = 0, self.quantized.reduce(bucket, self._stream, ready)
        else:
            wire = own * self.n * width
            done = self._scatter(bucket, wire, ready)
        if self.offload:
            done = self.to_host.accumulate(bucket, done, own, boundary=self.boundary)
        else:
            moved = own * (width + 2.0 * self.accum_bytes)
            done = c.aside("accumulate shard", moved, self._stream, (done,), launches=len(bucket))
        if wire:
            b.free(
                "communication", wire + own * width, "reduce-scatter buffers",
                used_on=self._stream,
            )  # fmt: skip
        if self.boundary and self.n < c.ranks:
            done = self._sum_replicas(own, len(bucket), done)
        if len(bucket) == 1 and bucket[0].numel > self.zero.reduce_bucket_size:
            b.free("gradient", self._gradient_bytes(bucket[0]), bucket[0].name)
        self.reduce_events.append(done)
        if not self.zero.overlaps:
            self.must_wait = (done,)

    def _scatter(self, bucket: list[Gradient], wire: int, ready: int) -> int:
        """Interleave the shards, reduce-scatter."""
        c, b = self.c, self.c.builder
        received = wire // self.n
        b.hook(c.costs.host.slice_s * len(bucket) * self.n)
        b.alloc(
            "communication", wire + received, "reduce-scatter buffers",
            tensors=(wire, received), stream=self._stream,
        )  # fmt: skip
        # Put in the ranks' order unless one gradient is in it as it is, then divided in place.
        passes = 1 + (len(bucket) > 1 or bucket[0].numel % self.n > 0)
        packed = c.aside(
            "interleave shards", 2.0 * wire * passes, self._stream, (ready,),
            launches=len(bucket) + 1, kernels=passes,
        )  # fmt: skip
        if self.n == 1:
            return packed
        op = "reduce_scatter" if self.zero.reduce_scatter else "all_reduce"
        call = Call(op, self.group, wire)
        return c.beside(f"{op.replace('_', '-')} gradients", call, (packed,))

    def _sum_replicas(self, own: int, tensors: int, ready: int) -> int:
        """MiCS, at the boundary: shards are averaged over the groups that hold the same ones."""
        c, b = self.c, self.c.builder
        size = own * self.accum_bytes
        scaled = c.aside(
            "scale shards", 2.0 * size, self._stream, (ready,), launches=tensors, kernels=tensors
        )
        call = Call("all_reduce", f"dp_replicate:{self.n}", size)
        return b.collective("all-reduce shards", call, waits=(scaled,))

    @property
    def _stream(self) -> str:
        return "reduce" if self.zero.overlaps else "compute"

    def end_backward(self) -> None:
        """Reduce the remainder, then wait for the reduction stream."""
        for bucket in self.bucket.drain():
            self._reduce(bucket, self.filled)
        if self.reduce_events:
            self.c.builder.sync("synchronize reductions", (self.reduce_events[-1],))
        self.reduce_events.clear()
        self.fetch_events.clear()

    def reduce_gradients(self) -> None:
        """Everything is reduced already."""

    def step(self) -> None:
        """Release all, norm, sub-group by sub-group optimizer, gather the persistent parameters."""
        c = self.c
        c.builder.hook(c.costs.host.stepped_s * c.tensors)
        for name in self.coordinator.release_all():
            self.gathers.drop(name)
        for name in sorted(self.persistent & self.coordinator.available):
            self.gathers.keep_second(name)
        if self.offload:
            step_sub_groups(
                c, self.groups, self.optimizer_swapper, self.swapper, self.process, self.group,
                update_gpu=not self.offload_param,
            )  # fmt: skip
            self.to_host.forget()
        else:
            gather_matrices(c)
            held = self.own * float(self.accum_bytes)
            if c.plan.precision == "fp16":
                c.check_overflow(held, len(self.groups))
            c.gradient_norm(
                held + NORM_BYTES * self.own,
                NORM_KERNELS * c.tensors,
                norm_bytes=FP64_BYTES,
                groups=[self.group] * len(self.groups),
            )
            for group in self.groups:
                self._step_group(group.numel)
                self.swapper.write_back(group)
        self._gather_persistent()
        self.gathers.forget_second()

    def _step_group(self, numel: int) -> None:
        """Flatten gradients to the master's dtype, unscale, step, cast back."""
        c, b = self.c, self.c.builder
        low_precision = c.plan.precision != "fp32"
        width = c.master_bytes if low_precision else 4.0
        b.alloc("temporary", numel * width, "flat gradients of a sub-group")
        cast_s = c.costs.memory_s(numel * (self.accum_bytes + 3.0 * width), kernels=2)
        b.compute("flatten and unscale", "optimizer", cast_s, launches=4)
        stepped = c.optimizer_step(numel, low_precision_copy=low_precision)
        if self.offload_param:
            size = numel * float(c.weight_bytes)
            done = b.copy("weights to host", D2H, c.copy_s(size, "d2h"), (stepped,))
            b.sync("weights to host", (done,))
        b.free("temporary", numel * width, "flat gradients of a sub-group")

    def _gather_persistent(self) -> None:
        """Persistent parameters were updated: gather each again, then synchronize.

        ``partition_parameters.py``, ``_allgather_params_coalesced``: one call per parameter.
        """
        c, b = self.c, self.c.builder
        kept = [p for p in self.parameters if p.name in self.coordinator.available]
        if not kept or self.n == 1:
            return
        waits, works = b.last_on("compute"), []
        for p in kept:
            size = shard_numel(p.numel, self.n) * self.n * c.weight_bytes
            call = Call("all_gather", self.group, size)
            works.append(b.collective(f"all-gather {p.name}", call, waits=waits))
        b.sync("persistent parameters", works)
