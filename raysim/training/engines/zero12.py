"""ZeRO stages 1 and 2: sharded optimizer states, and for stage 2 sharded gradients.

Source: ``deepspeed/runtime/zero/stage_1_and_2.py`` of 0.19. What the code really does, and older
texts do not say: a bucket is reduced by one *all-reduce*, from which each rank copies its slices;
stage 2 reduces after every micro-batch; stage 1 without ``overlap_comm`` reduces after backward,
exposed; one all-gather of the whole flat group ends the step.

Without ``use_multi_rank_bucket_allreduce`` a bucket is reduced rank by rank, to each what it owns;
under ``overlap_comm`` the host waits for the device before each.

Not modelled: sparse gradients.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.training.engines.context import NORM_BYTES, NORM_KERNELS, EngineContext
from raysim.training.engines.offload import cpu_step
from raysim.training.engines.weight_copies import WeightCopies, Wire
from raysim.training.layers.sections import Gradient, Unit
from raysim.training.program import D2H, Call
from raysim.training.states.zero import Buckets, FlatGroup, slices

OVERFLOW_KERNELS = 13
"""Per gradient, of ``has_inf_or_nan``: its largest and its smallest value, ``isfinite`` of both by
four kernels each, and, not, add. So they are in a profile of 201 gradients on an H100."""
_SAID = {"all_reduce": "all-reduce", "reduce": "reduce"}
STEP_VIEWS = 5
"""Per parameter: a detached gradient, and the weight once more a view of the flat group."""


class ZeroOneTwo:
    """Buckets of ``reduce_bucket_size`` elements, at most one in flight."""

    def __init__(self, context: EngineContext) -> None:
        self.c = context
        self.zero = context.plan.zero
        # PipelineEngine turns overlap off with a warning (runtime/pipe/engine.py).
        self.overlap = self.zero.overlaps and context.plan.mesh.pp == 1
        self.offload = self.zero.offload_optimizer.device != "none"
        self.groups = context.flat_groups
        self.own = sum(g.own for g in self.groups)
        self.offsets = {name: at for g in self.groups for name, at in g.offsets.items()}
        """Where each gradient begins in its flat group."""
        self.group_of = {x.name: g for g in self.groups for x in g.gradients}
        self.kept_bytes = self._kept_bytes()
        self.kept = False
        """Whether the gradients of the own slice are held."""
        self.boundary = False
        self.copies, self.wire = WeightCopies(context), Wire(context)
        self.bucket = Buckets(self.zero.reduce_bucket_size, self.wire.width)
        self.buffers = 0
        self.in_flight: tuple[int, ...] = ()
        self.must_wait: tuple[int, ...] = ()

    def _kept_bytes(self) -> int:
        """Gradients a rank keeps from reduction to step: its slice, tensor by tensor.

        One flat buffer of the slice where they are accumulated in fp32 under 16-bit weights
        (``_build_compact_grad_partition_buffer``), with offload too. Otherwise that copies them to
        the host.
        """
        c = self.c
        width = COMPUTE_DTYPE_BYTES[c.plan.grad_accum_dtype or c.plan.precision]
        if c.plan.sums_flat:
            return self.own * width
        if self.offload:
            return 0
        return sum(g.touched for g in self.groups) * width

    @property
    def hooks(self) -> bool:
        """Whether gradients are bucketed during backward, rather than after it."""
        return self.zero.stage == 2 or (self.overlap and self.boundary)

    def setup(self) -> None:
        """Whole weights; this rank's slice of master and states, unless they live on the host."""
        b, c = self.c.builder, self.c
        own, parts = self.own, [g.own for g in self.groups]
        c.flatten_weights(on_host=True)
        low = [part * c.weight_bytes for part in parts]
        b.scratch(own * c.weight_bytes, "slice of the weights", low)
        if not self.offload:
            states = own * (c.master_bytes + c.state_bytes)
            made = [size for part in parts for size in c.states(part * c.state_bytes)]
            masters = [part * c.master_bytes for part in parts]
            b.alloc(
                "optimizer_state", states, "optimizer states", tensors=(*masters, *made),
                lazy=len(made),
            )  # fmt: skip
            b.scratch(sum(masters), "zero gradients", masters)
            b.free_scratch(sum(masters), "zero gradients")
        b.free_scratch(own * c.weight_bytes, "slice of the weights")
        if self.offload:
            largest = max(c.sizes, default=0)
            b.alloc("bucket", largest * c.weight_bytes, "gradient on its way to the host")

    def begin_forward(self) -> None:
        """Nothing is due."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Stage 1 communicates only at the boundary."""
        self.boundary = boundary

    def alike(self) -> Hashable:
        """Stage 1 in line does nothing between its micro-batches."""
        if self.zero.stage == 2 or self.overlap or self.must_wait or self.copies.on:
            return None
        return self.c.builder.backward_index == 0

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Gradients are new each micro-batch under stage 2, once a step under stage 1."""
        waits, self.must_wait = self.must_wait, ()
        if phase == "backward" and (self.zero.stage == 2 or self.c.builder.backward_index == 0):
            self.c.alloc_gradients(unit)
        self.copies.before(unit, phase)
        return waits

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """Feed the bucket in gradient-ready order, flushing it when the next one does not fit."""
        self.copies.after(unit, phase)
        if phase != "backward" or not self.hooks:
            return
        self.c.builder.hook(self.c.costs.host.gradient_s * len(unit.gradients))
        # Autocast casts a product's bias before its weight, whose gradient thus comes first.
        cast = bool(self.wire.narrow) and bool(unit.products)
        for gradient in unit.gradients if cast else reversed(unit.gradients):
            for full in self.bucket.add(gradient):
                self._flush(full, op)
            if self.bucket.gradients:
                self._take_buffers()

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Copy into the flat buffer (stage 2), or add to held gradients (stage 1)."""
        c = self.c
        passes = int(self.hooks) + int(self.zero.stage == 1 and c.builder.backward_index > 0)
        cast_bytes, cast = self.copies.back(unit)
        tensors = len(unit.gradients) * passes + cast
        if not tensors:
            return 0.0, 0
        moved = cast_bytes + 2.5 * unit.numel * c.weight_bytes * passes
        return c.costs.memory_s(moved, kernels=tensors), tensors

    def end_backward(self) -> None:
        """Reduce the remainder; with overlap the host then waits for the device."""
        self._flush_rest()
        if self.overlap and self.in_flight:
            self.c.builder.sync("synchronize", self.in_flight)
            self.in_flight = ()
        self._give_buffers()
        if self.zero.stage == 1 and self.overlap and self.boundary:
            self._keep_own()

    def reduce_gradients(self) -> None:
        """Stage 1 without overlap: after backward, nothing to hide behind, in flat order."""
        if self.zero.stage != 1 or self.overlap:
            return
        self._take_buffers()
        for gradient in self.c.built:
            for full in self.bucket.add(gradient):
                self._flush(full, len(self.c.builder.program.ops) - 1)
        self._flush_rest()
        self._give_buffers()
        self._keep_own()

    def _flush_rest(self) -> None:
        for bucket in self.bucket.drain():
            self._flush(bucket, len(self.c.builder.program.ops) - 1)

    def _keep_own(self) -> None:
        """Stage 1 lets go of what other ranks own once everything is reduced."""
        self.c.builder.free_all("gradient", "reduced gradients")
        self.c.builder.alloc("gradient", self.kept_bytes, "own gradient slices")

    def _take_buffers(self) -> None:
        """Flat buffers are allocated at the configured size even if the model is smaller."""
        if not self.buffers and self.zero.contiguous_gradients:
            size = self.zero.reduce_bucket_size * self.c.comm_bytes
            buffers = [size] * (len(self.wire.widths) * (2 if self.overlap else 1))
            self.buffers = sum(buffers)
            self.c.builder.alloc("bucket", self.buffers, "reduce buckets", tensors=buffers)

    def _give_buffers(self) -> None:
        self.c.builder.free("bucket", self.buffers, "reduce buckets")
        self.buffers = 0

    def _parts(self, bucket: list[Gradient]) -> Iterator[tuple[FlatGroup, list[Gradient]]]:
        """A bucket's gradients by who holds them, in the order in which the kinds come in it."""
        groups = [self.group_of[g.name] for g in bucket]
        for kind in dict.fromkeys(g.group for g in groups):
            both = [(g, x) for g, x in zip(groups, bucket, strict=True) if g.group == kind]
            yield both[0][0], [x for _, x in both]

    def _pieces(self, bucket: list[Gradient]) -> Iterator[int]:
        """Elements per all-reduce: the bucket, or what each rank owns of a gradient beyond it.

        ``allreduce_and_scatter`` sends whenever the slices at hand are more than a bucket.
        """
        held, capacity = 0, self.zero.reduce_bucket_size
        if len(bucket) == 1 and bucket[0].numel > capacity:
            start = self.offsets[bucket[0].name]
            for piece in slices(start, start + bucket[0].numel, self.group_of[bucket[0].name].own):
                held += piece
                if held > capacity:
                    yield held
                    held = 0
        else:
            held = sum(g.numel for g in bucket)
        if held:
            yield held

    def _to_owners(self, group: FlatGroup, bucket: list[Gradient]) -> Iterator[tuple[int, int]]:
        """Elements that each rank owns of a bucket, and in how many runs they lie in it.

        Of more than one run a copy is sent. A bucket is larger than its size only where it is of
        one gradient, of which a rank's slice is one run.
        """
        found: dict[int, tuple[int, int]] = {}
        before = -1
        for gradient in bucket:
            at = self.offsets[gradient.name]
            for length in slices(at, at + gradient.numel, group.own):
                owner = at // group.own
                held, runs = found.get(owner, (0, 0))
                found[owner] = held + length, runs + (owner != before)
                before, at = owner, at + length
        yield from found.values()

    def _reductions(self, bucket: list[Gradient]) -> Iterator[tuple[Call, int]]:
        """Each call of a bucket, and bytes of the copy that it sends; 0: of the bucket itself."""
        for group, part in self._parts(bucket):
            if group.ranks == 1:
                continue
            width = self.wire.width(part[0])
            if self.zero.use_multi_rank_bucket_allreduce:
                for piece in self._pieces(part):
                    yield Call("all_reduce", group.group, piece * width), 0
            else:
                for piece, runs in self._to_owners(group, part):
                    call = Call("reduce", group.group, piece * width)
                    yield call, call.size_bytes if runs > 1 else 0

    def _flush(self, bucket: list[Gradient], ready: int) -> None:
        """One all-reduce of the whole bucket, then copies of the own slices."""
        c, b = self.c, self.c.builder
        numel = sum(g.numel for g in bucket)
        width = self.wire.width(bucket[0])
        wire = numel * width
        calls = list(self._reductions(bucket))
        together = self.zero.use_multi_rank_bucket_allreduce
        copied = wire if len(bucket) > 1 else 0
        if not together:
            copied = max((size for _, size in calls), default=0)
        b.alloc("communication", copied, "flattened bucket")
        waits: tuple[int, ...] = (ready, *self.in_flight)
        parts = self._parts(bucket)
        own = sum(sum(g.numel for g in part) / group.ranks for group, part in parts)
        for call, _ in calls:
            if self.overlap and not together:
                b.sync("synchronize", (*waits, *b.last_on("compute")))
            waits = (c.beside(f"{_SAID[call.op]} gradients", call, waits),)
        # Flattened into one tensor, divided by the ranks, and what is this rank's copied out.
        flattened = copied if together else sum(size for _, size in calls)
        moved = 2.0 * (flattened + wire + own * width)
        done = c.aside("copy own slices", moved, "reduce", waits)
        if self.offload:
            done = self._to_host(own, done)
        b.free("communication", copied, "flattened bucket")
        # Compute waits for the bucket before this one when overlapping, for this one otherwise.
        self.must_wait = self.in_flight if self.overlap else (done,)
        self.in_flight = (done,)
        if self.zero.stage == 2:
            # Stage 2 keeps its slice from the first bucket of a step on, and frees what is reduced.
            b.free("gradient", numel * c.weight_bytes, "reduced gradients")
            if not self.kept:
                b.alloc("gradient", self.kept_bytes, "own gradient slices")
                self.kept = True

    def _to_host(self, own: float, ready: int) -> int:
        """A bucket's ``own`` elements: sums in the weights' type, then in fp32 at the boundary.

        Under stage 2 every micro-batch's go down, added on the GPU to what came up of those before
        (``async_accumulate_grad_in_cpu_via_gpu``).
        """
        c, b = self.c, self.c.builder
        pinned = self.zero.offload_optimizer.pin_memory
        if c.plan.sums_on_host:
            seconds = c.copy_s(own * c.weight_bytes, "d2h", pinned=pinned)
            if b.backward_index:
                seconds += c.copy_s(own * c.weight_bytes, "h2d", pinned=pinned)
            ready = b.copy("gradients to host and back", D2H, seconds, (ready,))
        if self.boundary:
            seconds = c.copy_s(4.0 * own, "d2h", pinned=pinned)
            ready = b.copy("gradients to host", D2H, seconds, (ready,))
        return ready

    def step(self) -> None:
        """Overflow, norm, cast, unscale, step the own partition, all-gather the group."""
        c, b = self.c, self.c.builder
        own_bytes = self.own * float(c.weight_bytes)
        if self.offload:
            b.free_all("gradient", "gradients on the host")
            cpu_step(c, self.own, update_gpu=True, overflow=c.checks_overflow)
        else:
            tensors = max(1, sum(-(-len(g.gradients) // g.ranks) for g in self.groups))
            waits = self.in_flight
            if c.checks_overflow:
                c.check_overflow(2 * own_bytes, OVERFLOW_KERNELS * tensors, waits=waits)
            b.hook(c.costs.host.operator_s * STEP_VIEWS * c.tensors)
            size = own_bytes + NORM_BYTES * self.own
            norms = ["dp"] * len(self.groups)
            c.gradient_norm(size, NORM_KERNELS * tensors, waits=waits, groups=norms)
            c.average_expert_norms()
            low_precision = c.plan.precision != "fp32"
            flat = own_bytes + (4.0 * self.own if low_precision else 0.0)
            parts = (own_bytes, 4.0 * self.own) if low_precision else ()
            b.alloc("temporary", flat, "flat fp32 gradients", tensors=parts)
            cast_s = c.costs.memory_s(self.own * (3.0 * c.weight_bytes + 4.0 + 8.0), kernels=3)
            b.compute("flatten and unscale", "optimizer", cast_s, launches=tensors + 2)
            b.free_all("gradient", "zero_grad")
            c.optimizer_step(self.own, low_precision_copy=low_precision)
            b.free("temporary", flat, "flat fp32 gradients")
        waits = b.last_on("h2d" if self.offload else "compute")
        for group in self.groups:
            if group.ranks > 1:
                call = Call("all_gather", group.group, group.own * group.ranks * c.weight_bytes)
                work = b.collective("all-gather weights", call, waits=waits)
                waits = (b.compute("weights ready", "collective", 0.0, launches=0, waits=(work,)),)
        self.in_flight = self.must_wait = ()
        self.kept = False
