"""ZeRO stage 3: parameters, gradients and states sharded; gathered module by module.

Sources: ``deepspeed/runtime/zero/stage3.py``, ``parameter_offload.py``,
``partition_parameters.py``, ``runtime/comm/coalesced_collectives.py`` of 0.19. Gathers and
reduce-scatters share one communicator, so they queue behind each other; at most two gathers and two
reductions may be outstanding before the host waits.

Not modelled: ZeRO++ (qwZ, hpZ, qgZ), MiCS, NVMe, leaf modules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.engines.context import EngineContext
from raysim.training.engines.coordinator import Coordinator, persistent_names
from raysim.training.engines.muon import gather_matrices
from raysim.training.engines.offload import cpu_step
from raysim.training.program import D2H, H2D, Call
from raysim.training.sections import Gradient, Unit
from raysim.training.zero import Bucket, pack, shard_numel

MAX_ONGOING = 2
"""Outstanding fetch events, and outstanding reduce events (hard-coded in DeepSpeed)."""
NORM_BYTES = 8
"""Stage 3 sums norms in fp64 (zero/utils.py, get_norm_dtype)."""
GATHER = "gather"
"""The all-gather stream: waits and copy-outs run here."""


class ZeroThree:
    """Drives the coordinator and emits what it decides."""

    def __init__(self, context: EngineContext, visits: Sequence[Unit]) -> None:
        c = self.c = context
        self.zero = c.plan.zero
        self.n = c.ranks
        parameters = tuple({g.name: g for u in c.units for g in u.uses}.values())
        self.parameters = parameters
        self.persistent = persistent_names(parameters, self.zero)
        forward = len(c.units)
        # The root module owns nothing, but its hooks run first in both passes and prefetch.
        trace = [(), *(u.uses for u in visits[:forward])]
        if len(visits) > forward:
            trace += [(), *(u.uses for u in visits[forward:])]
        self.coordinator = Coordinator(trace, self.persistent, self.zero)
        self.own = sum(shard_numel(g.numel, self.n) for u in c.units for g in u.gradients)
        self.offload = self.zero.offload_optimizer.device != "none"
        self.offload_param = self.zero.offload_param.device != "none"
        self.accum_bytes = COMPUTE_DTYPE_BYTES[c.plan.grad_accum_dtype or c.plan.precision]
        self.visit = 0
        self.boundary = False
        self.arriving: dict[str, int] = {}
        self.gathered: dict[str, int] = {}
        self.fetch_events: deque[int] = deque()
        self.reduce_events: deque[int] = deque()
        self.bucket = Bucket(self.zero.reduce_bucket_size)
        self.must_wait: tuple[int, ...] = ()

    def setup(self) -> None:
        """Shards of weights, gradients, master and states; the permanent reduce bucket."""
        b, c = self.c.builder, self.c
        stored = sum(shard_numel(p.numel, self.n) for p in self.parameters)
        shards = [shard_numel(p.numel, self.n) * c.weight_bytes for p in self.parameters]
        if not self.offload_param:
            # Partitioned one by one, then moved into one buffer.
            b.scratch(sum(shards), "shards as partitioned", shards)
            b.alloc("parameter", stored * c.weight_bytes, "weight shards")
            b.free_scratch(sum(shards), "shards as partitioned")
        if not self.offload:
            b.alloc("gradient", self.own * self.accum_bytes, "gradient shards")
            groups = self._groups()
            masters = [numel * c.master_bytes for numel in groups]
            made = [part for numel in groups for part in c.states(numel * c.state_bytes)]
            b.alloc(
                "optimizer_state", self.own * (c.master_bytes + c.state_bytes), "states",
                tensors=(*masters, *made), lazy=len(made),
            )  # fmt: skip
            b.scratch(max(masters, default=0.0), "master weights before they are cloned")
            b.free_scratch(max(masters, default=0.0), "master weights before they are cloned")
        if self.zero.contiguous_gradients:
            b.alloc("bucket", self.zero.reduce_bucket_size * c.comm_bytes, "reduce bucket")

    def begin_forward(self) -> None:
        """The trace starts over with every forward."""
        self.coordinator.reset()
        self._visit_root()

    def begin_backward(self, *, boundary: bool) -> None:
        """The boundary micro-batch sends fp32 gradients to the host."""
        self.boundary = boundary
        self._visit_root()

    def _visit_root(self) -> None:
        self.c.builder.hook(self.c.costs.hook_s)
        self._all_gather(self.coordinator.fetch().prefetch, "prefetch")

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Gather what is missing, wait for it, prefetch; make room for gradients."""
        b = self.c.builder
        if unit.uses:
            b.hook(self.c.costs.hook_s)
        fetch = self.coordinator.fetch()
        self._all_gather(fetch.missing, unit.name)
        waits = [*self.must_wait]
        self.must_wait = ()
        arrived: dict[int, None] = {self.arriving.pop(p.name): None for p in fetch.wait_for}
        for index in arrived:
            if len(self.fetch_events) > MAX_ONGOING:
                b.sync("limit outstanding fetches", (self.fetch_events.popleft(),))
            waits.append(index)
            self.fetch_events.append(index)
        self._all_gather(fetch.prefetch, "prefetch")
        if phase == "backward":
            self.c.alloc_gradients(unit)
        return waits

    def _all_gather(self, parameters: Sequence[Gradient], what: str) -> None:
        """One coalesced all-gather of shards; several parameters are then copied out."""
        if not parameters:
            return
        b, c = self.c.builder, self.c
        padded = sum(shard_numel(p.numel, self.n) * self.n for p in parameters)
        waits: tuple[int, ...] = ()
        if self.offload_param:
            own = padded // self.n * float(c.weight_bytes)
            waits = (
                b.copy(
                    f"shards of {what}",
                    H2D,
                    c.copy_s(own, "h2d", pinned=self.zero.offload_param.pin_memory),
                ),
            )
        for p in parameters:
            self.gathered[p.name] = p.numel * c.weight_bytes
            b.alloc("gathered_parameter", self.gathered[p.name], p.name, stream=GATHER)
        if self.n > 1:
            call = Call("all_gather", "dp", padded * c.weight_bytes)
            waits = (b.collective(f"all-gather {what}", call, waits=waits),)
        moved = 2.0 * padded * c.weight_bytes
        if len(parameters) > 1 or self.n == 1:
            # The flat output and the copied-out tensors live side by side until the copies are
            # queued.
            b.alloc("communication", padded * c.weight_bytes, "coalesced all-gather", stream=GATHER)
            seconds = c.costs.memory_s(moved, kernels=len(parameters))
            done = b.compute(
                "copy out", "collective", seconds, launches=len(parameters), stream=GATHER,
                waits=waits,
            )  # fmt: skip
            b.free("communication", padded * c.weight_bytes, "coalesced all-gather", used_on=GATHER)
        else:
            done = waits[0]
        for p in parameters:
            self.arriving[p.name] = done

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """Release what the coordinator lets go; feed gradients to the bucket."""
        for p in self.coordinator.release(self.coordinator.step - 1):
            self._drop(p.name)
        if phase != "backward":
            return
        for gradient in self._ready_order(unit):
            for full in self.bucket.add(gradient):
                self._reduce(full, op)
            if gradient.numel <= self.bucket.capacity:
                self.c.builder.free("gradient", gradient.numel * self.c.weight_bytes, gradient.name)

    def _ready_order(self, unit: Unit) -> Sequence[Gradient]:
        """Autograd's order: bias before weight, but for the memory-efficient linear's."""
        own_linear = self.zero.memory_efficient_linear and unit.modules[0].cls == "Linear"
        return unit.gradients if own_linear else unit.gradients[::-1]

    def _drop(self, name: str) -> None:
        self.c.builder.free("gathered_parameter", self.gathered.pop(name), name)

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Each gradient is copied into the bucket."""
        tensors = len(unit.gradients)
        if not tensors:
            return 0.0, 0
        moved = 2.0 * unit.numel * self.c.weight_bytes
        return self.c.costs.memory_s(moved, kernels=tensors), tensors

    def _reduce(self, bucket: list[Gradient], ready: int) -> None:
        """Interleave the shards, reduce-scatter, add into the gradient shard."""
        c, b = self.c, self.c.builder
        if len(self.reduce_events) > MAX_ONGOING:
            b.sync("limit outstanding reductions", (self.reduce_events.popleft(),))
        own = sum(shard_numel(g.numel, self.n) for g in bucket)
        wire = own * self.n * c.comm_bytes
        b.alloc(
            "communication", wire + own * c.comm_bytes, "reduce-scatter buffers",
            tensors=(wire, own * c.comm_bytes), stream=self._stream,
        )  # fmt: skip
        interleave_s = c.costs.memory_s(2.0 * wire, kernels=2)
        packed = b.compute(
            "interleave shards", "collective", interleave_s, launches=len(bucket) + 1,
            stream=self._stream, waits=(ready,),
        )  # fmt: skip
        done = packed
        if self.n > 1:
            op = "reduce_scatter" if self.zero.reduce_scatter else "all_reduce"
            done = b.collective(
                f"{op.replace('_', '-')} gradients", Call(op, "dp", wire), waits=(packed,)
            )
        if self.offload:
            width = 4.0 if self.boundary else float(c.weight_bytes)
            copy_s = c.copy_s(own * width, "d2h", pinned=self.zero.offload_optimizer.pin_memory)
            done = b.copy("gradients to host", D2H, copy_s, (done,))
        else:
            add_s = c.costs.memory_s(own * (c.comm_bytes + 2.0 * self.accum_bytes))
            done = b.compute(
                "accumulate shard", "collective", add_s, launches=len(bucket),
                stream=self._stream, waits=(done,),
            )  # fmt: skip
        b.free(
            "communication", wire + own * c.comm_bytes, "reduce-scatter buffers",
            used_on=self._stream,
        )  # fmt: skip
        if len(bucket) == 1 and bucket[0].numel > self.zero.reduce_bucket_size:
            b.free("gradient", bucket[0].numel * c.weight_bytes, bucket[0].name)
        self.reduce_events.append(done)
        if not self.zero.overlaps:
            self.must_wait = (done,)

    @property
    def _stream(self) -> str:
        return "reduce" if self.zero.overlaps else "compute"

    def end_backward(self) -> None:
        """Reduce the remainder, then wait for the reduction stream."""
        if self.bucket.gradients:
            self._reduce(self.bucket.drain(), len(self.c.builder.program.ops) - 1)
        if self.reduce_events:
            self.c.builder.sync("synchronize reductions", (self.reduce_events[-1],))
        self.reduce_events.clear()
        self.fetch_events.clear()

    def reduce_gradients(self) -> None:
        """Everything is reduced already."""

    def step(self) -> None:
        """Release all, norm, sub-group by sub-group optimizer, gather the persistent parameters."""
        c = self.c
        for name in self.coordinator.release_all():
            self._drop(name)
        if self.offload:
            fp16 = c.plan.precision == "fp16"
            cpu_step(c, self.own, update_gpu=not self.offload_param, overflow=fp16)
        else:
            groups = self._groups()
            gather_matrices(c)
            c.overflow_and_norm(
                self.own * float(self.accum_bytes),
                len(groups),
                overflow=c.plan.precision == "fp16",
                norm_bytes=NORM_BYTES,
            )
            for numel in groups:
                self._step_group(numel)
        self._gather_persistent()

    def _groups(self) -> list[int]:
        """Elements of each sub-group: shards up to ``sub_group_size``."""
        shards = (
            Gradient(g.name, shard_numel(g.numel, self.n))
            for u in self.c.units
            for g in u.gradients
        )
        packed = pack(shards, self.zero.sub_group_size)
        return [sum(g.numel for g in group) for group in packed]

    def _step_group(self, numel: int) -> None:
        """Flatten gradients to the master's dtype, unscale, step, cast back."""
        c, b = self.c, self.c.builder
        low_precision = c.plan.precision != "fp32"
        width = c.master_bytes if low_precision else 4.0
        b.alloc("temporary", numel * width, "flat gradients of a sub-group")
        cast_s = c.costs.memory_s(numel * (self.accum_bytes + 3.0 * width), kernels=2)
        b.compute("flatten and unscale", "optimizer", cast_s, launches=4)
        c.optimizer_step(numel, low_precision_copy=low_precision)
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
            works.append(
                b.collective(f"all-gather {p.name}", Call("all_gather", "dp", size), waits=waits)
            )
        b.sync("persistent parameters", works)
