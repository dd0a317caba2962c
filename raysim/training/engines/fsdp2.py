"""FSDP2, ``fully_shard``: every parameter sharded along its first dimension.

Sources: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``, ``_fsdp_collectives.py``,
``_fsdp_state.py`` of torch 2.13. All-gathers and reduce-scatters share one communicator and so
queue behind each other; copies in run on a stream of their own, copies out on the compute stream.
In forward the output of an all-gather lives until the next group has waited for its own, so that
the next copy in may overlap; in backward it dies with the copy out. One reduce-scatter's input is
alive at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.training.engines.context import SCALAR_BYTES, EngineContext
from raysim.training.engines.fsdp import GATHER, REDUCE, Sharded, divisors, trainable_numel
from raysim.training.layers.sections import Section, Unit
from raysim.training.program import Call
from raysim.training.states.wrapping import Group, Tensor, padded_numel


class Fsdp2(Sharded):
    """State per group: sharded, on its way, whole, or sharded over fewer ranks."""

    def __init__(self, context: EngineContext, sections: Sequence[Section]) -> None:
        super().__init__(context, sections)
        self.after_ranks = self.s.post_forward_ranks(self.n)
        self.coming: dict[Group, int] = {}
        """Operation after which the all-gather's output is complete."""
        self.whole: set[Group] = set()
        self.partial: set[Group] = set()
        """Sharded over ``after_ranks`` since forward."""
        self.held: tuple[int, int] | None = None
        """Bytes of forward's last all-gather output, and the copy out that read it."""
        self.gather_after: tuple[int, ...] = ()
        """What the copy-in stream waits for next."""
        self.order: list[Group] = []
        """As forward left them."""
        self.reducing: tuple[int, int] | None = None
        """Bytes of the last reduce-scatter's input, and that reduce-scatter."""
        self.all_reducing = 0
        """Bytes that hybrid sharding keeps in the reduction's type until backward ends."""
        self.partly: set[Group] = set()
        """Groups with sums over this replica alone."""
        self.kept: set[Group] = set()
        """Groups with whole gradients of earlier micro-batches."""
        overflows = (self.s.reduce_dtype or context.plan.compute_dtype) == "fp16"
        self.divisors = divisors(context.ranks) if overflows else (1.0, 1.0)
        """NCCL itself divides in the wider types."""
        fp8 = context.plan.fp8
        gathers = fp8 is not None and fp8.float8_all_gather
        self.fp8 = {g.name for u in context.units for g in u.uses if g.fp8 and gathers}
        """Names of weights that travel in fp8."""
        self.scales_at_once = fp8 is not None and fp8.precomputes_scales

    def own_numel(self, group: Group) -> int:
        """Rank 0 has a full chunk of every parameter."""
        return padded_numel(group.tensors, self.n) // self.n

    def own_trainable(self, group: Group) -> int:
        """The same of trainable parameters."""
        return padded_numel(group.trainable, self.n) // self.n

    def own_sizes(self, group: Group) -> Sequence[int]:
        """One local tensor per parameter."""
        return [padded_numel((t,), self.n) // self.n for t in group.trainable]

    def norm_bytes(self) -> int:
        """``clip_grad_norm_`` stacks one norm per parameter, in the gradients' type."""
        tensors = sum(len(g.trainable) for g in self.groups)
        return tensors * self.c.weight_bytes

    def _bytes(self, group: Group) -> int:
        """Of the whole group, padded, as it is gathered."""
        fp8 = padded_numel(self._in_fp8(group), self.n)
        wide = padded_numel(group.tensors, self.n) - fp8
        return round(wide * group.element_bytes(self.width)) + fp8

    def _in_fp8(self, group: Group) -> Sequence[Tensor]:
        return [t for t in group.tensors if t.name in self.fp8]

    def begin_forward(self) -> None:
        """The root's pre-forward: all-gather streams wait for the optimizer."""
        self.gather_after += self.b.last_on("compute")

    def pre_forward(self, group: Group) -> None:
        """Gather, wait; torch needs no explicit prefetch, because the host runs ahead."""
        self._unshard(group)
        self._wait(group, forward=True)
        following = sorted((g for g in self.groups if g.first > group.first), key=lambda g: g.first)
        for ahead in following[: int(self.s.forward_prefetch)]:
            self._unshard(ahead)

    def post_forward(self, group: Group) -> None:
        """Free, or keep a share of fewer ranks' making; the root's also drops the last output."""
        self.order.append(group)
        if group.frees:
            if self.after_ranks < self.n:
                self._keep_share(group)
            self._free(group)
        if group.last == len(self.c.units) - 1:
            self._drop_held()

    def _keep_share(self, group: Group) -> None:
        share = self._bytes(group) // self.after_ranks
        self.b.alloc("gathered_parameter", share, f"{group.name} resharded")
        seconds = self.c.costs.memory_s(2.0 * share, kernels=len(group.tensors))
        op = self.b.compute("reshard", "collective", seconds, launches=len(group.tensors))
        self.gather_after += (op,)
        self.partial.add(group)

    def pre_backward(self, group: Group) -> None:
        """Wait for what was prefetched, then prefetch the groups before in forward order."""
        self._unshard(group)
        self._wait(group, forward=False)
        at = self.order.index(group)
        for ahead in self.order[max(0, at - self.s.backward_prefetched) : at][::-1]:
            self._unshard(ahead)

    def need(self, group: Group) -> None:
        """Hooks of an inner module run as in forward, but leave it whole.

        The last such all-gather's output stays until the next forward.
        """
        self._unshard(group)
        self._wait(group, forward=True)

    def ends_backward(self, i: int) -> Sequence[Group]:
        """When the gradient of its input is there; the first modules' has none.

        Their hook runs in the callback at backward's end, root first.
        """
        if i != self.reached:
            return self.opens.get(i, ())[::-1]
        return tuple(g for at in range(i + 1) for g in self.opens.get(at, ()))

    def post_backward(self, group: Group) -> None:
        """Free the parameters; reduce the gradients or keep them whole."""
        if self.last or self.s.reshard_after_backward:
            self._free(group)
        if not group.trainable:
            return
        if self.boundary:
            self._reduce(group)
        else:
            self._keep_whole(group)

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """A gradient that was added to an earlier one of the same type is gone at once."""
        group = self.owner.get(id(unit))
        if phase == "backward" and group in self.kept and not self._upcasts:
            self.b.free("gradient", self.reduced(unit).numel * self.width, unit.name)
        super().after(unit, phase, op)

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Adding to the gradients of earlier micro-batches, where autograd does it."""
        if self.owner.get(id(unit)) not in self.kept or self._upcasts:
            return 0.0, 0
        unit = self.reduced(unit)
        tensors = len(unit.gradients)
        return self.c.costs.memory_s(3.0 * unit.numel * self.width, kernels=tensors), tensors

    def end_backward(self) -> None:
        """The root's final callback."""
        super().end_backward()
        if self.reducing is not None:
            self.b.free("communication", self.reducing[0], "reduce-scatter input")
            self.reducing = None
        self.b.free("communication", self.all_reducing, "all-reduce input")
        self.all_reducing = 0
        self.order.clear()

    @property
    def _upcasts(self) -> bool:
        """Whether gradients wait for their reduction in another type than backward's."""
        return self.reduce_width != self.width

    def _unshard(self, group: Group) -> None:
        """Copy in and all-gather, unless that is under way or done."""
        if group in self.whole or group in self.coming:
            return
        b = self.b
        shared = group in self.partial
        ranks = self.after_ranks if shared else self.n
        size = self._bytes(group)
        own = size // ranks
        waits, self.gather_after = self.gather_after, ()
        waits += () if shared else self.shards_to_gpu(group)
        if self.n == 1:  # no all-gather: the copy out reads the shard itself
            self.coming[group] = waits[-1] if waits else -1
            return
        staged = self._staged_bytes(group, own)
        b.alloc("communication", staged, "all-gather input", stream=GATHER)
        if self.fp8 and not self.scales_at_once and not shared:
            waits = self._agree_on_scales(group, waits)
        if self._recasts(group) and not shared:
            waits = self.cast_shards(group, waits)
        b.alloc("communication", size, "all-gather output", stream=GATHER)
        copied = self.c.aside("copy in", 2.0 * own, GATHER, waits)
        b.free("communication", staged, "all-gather input")
        where = f"dp_shard:{ranks}" if shared else self.shard_group
        call = Call("all_gather", where, size)
        self.coming[group] = self.c.beside(f"all-gather {group.name}", call, (copied,))

    def _staged_bytes(self, group: Group, own: int) -> int:
        """Copies that live until the copy in: shards from the host, and in the gathered type."""
        cast = own if self._recasts(group) else 0
        return cast + (self.own_bytes(group) if self.s.cpu_offload else 0)

    def _recasts(self, group: Group) -> bool:
        return self.casts or bool(self._in_fp8(group))

    def _agree_on_scales(self, group: Group, waits: tuple[int, ...]) -> tuple[int, ...]:
        """The amax of every weight that is about to be cast, one after the other."""
        for tensor in self._in_fp8(group):
            waits = (self._amax((tensor,), waits),)
        return waits

    def _amax(self, tensors: Sequence[Tensor], waits: tuple[int, ...]) -> int:
        """Of this rank's rows, then of all ranks'."""
        b, own = self.b, padded_numel(tensors, self.n) // self.n
        seconds = self.c.costs.memory_s(float(own * self.c.weight_bytes), kernels=len(tensors))
        found = b.compute("amax of shards", "collective", seconds, stream=GATHER, waits=waits)
        call = Call("all_reduce", self.shard_group, len(tensors) * SCALAR_BYTES)
        return b.collective("all-reduce amax", call, waits=(found,))

    def step(self) -> None:
        """After it, the scales of all weights that will be gathered in fp8, at once."""
        super().step()
        tensors = [t for g in self.groups for t in self._in_fp8(g)]
        if tensors and self.scales_at_once and self.n > 1:
            done = self._amax(tensors, self.b.last_on("compute"))
            self.b.compute("scales ready", "collective", 0.0, launches=0, waits=(done,))

    def _wait(self, group: Group, *, forward: bool) -> None:
        """Copy out into the parameters' own storages on the compute stream."""
        gathered = self.coming.pop(group, None)
        if gathered is None:
            return
        b, size = self.b, self._bytes(group)
        b.alloc("gathered_parameter", size, group.name)
        waits = (gathered,) if gathered >= 0 else ()
        done = b.compute(
            "copy out", "collective", self.c.costs.memory_s(2.0 * size), waits=waits,
        )  # fmt: skip
        inner = [t for t in group.tensors if t.inner]
        if inner and self.n > 1:  # copied out beside them first, then joined
            moved = sum(t.numel for t in inner) * group.element_bytes(self.width)
            b.alloc("communication", moved, "parts of inner dimensions")
            done = self._join("join parts", moved, inner)
            b.free("communication", moved, "parts of inner dimensions")
        if group in self.partial:
            self.partial.remove(group)
            b.free("gathered_parameter", size // self.after_ranks, f"{group.name} resharded")
        self.whole.add(group)
        if self.n == 1:
            return
        if forward:
            self._drop_held()  # wait_for_unshard has a reference to it until it returns
            self.held = size, done
        else:
            b.free("communication", size, "all-gather output")
            self.gather_after += (done,)

    def _join(self, what: str, size_bytes: float, tensors: Sequence[Tensor]) -> int:
        """``torch.cat`` of each of them, or of its chunks (``_fsdp_collectives.py``)."""
        seconds = self.c.costs.memory_s(2.0 * size_bytes, kernels=len(tensors))
        return self.b.compute(what, "collective", seconds, launches=len(tensors))

    def _drop_held(self) -> None:
        if self.held is not None:
            size, copied = self.held
            self.b.free("communication", size, "all-gather output")
            self.gather_after += (copied,)
            self.held = None

    def _free(self, group: Group) -> None:
        if group in self.whole:
            self.whole.remove(group)
            self.b.free("gathered_parameter", self._bytes(group), group.name)

    def _keep_whole(self, group: Group) -> None:
        """``set_requires_gradient_sync(False)``: whole gradients stay, in the reduction's type."""
        numel = trainable_numel(group.tensors)
        if self._upcasts:
            self._accumulate(group, numel)
        self.kept.add(group)

    def _accumulate(self, group: Group, numel: int) -> None:
        """Cast into, or add to, the gradients kept in the reduction's type."""
        first = group not in self.kept
        if first:
            self.b.alloc("gradient", numel * self.reduce_width, f"{group.name} accumulated")
        moved = numel * (self.width + (1.0 if first else 2.0) * self.reduce_width)
        seconds = self.c.costs.memory_s(moved, kernels=len(group.trainable))
        self.b.compute("accumulate", "backward", seconds, launches=len(group.trainable))
        self.b.free("gradient", numel * self.width, group.name)

    def _reduce(self, group: Group) -> None:
        """Copy in, reduce-scatter, all-reduce over replicas, keep the shard in the stored type."""
        b, c = self.b, self.c
        numel = trainable_numel(group.tensors)
        width = self.width
        if group in self.kept:
            self.kept.remove(group)
            if self._upcasts:
                seconds = c.costs.memory_s(
                    numel * (self.width + 2.0 * self.reduce_width), kernels=len(group.trainable)
                )
                b.compute("accumulate", "backward", seconds, launches=len(group.trainable))
                b.free("gradient", numel * self.width, group.name)
                width = self.reduce_width
        self._scatter(group, width)

    def _scatter(self, group: Group, width: int) -> None:
        """Of gradients that wait in a type of so many bytes."""
        b, numel = self.b, trainable_numel(group.tensors)
        waits: tuple[int, ...] = ()
        if self.reducing is not None:
            before, scattered = self.reducing
            waits = (scattered,)
            b.free("communication", before, "reduce-scatter input")
        padded = padded_numel(group.trainable, self.n)
        wire = padded * self.reduce_width
        own = padded // self.n
        b.alloc("communication", wire, "reduce-scatter input")
        inner = [t for t in group.trainable if t.inner]
        if inner and self.n > 1:  # into parts one behind the other, which the copy in reads
            moved = sum(t.numel for t in inner) * width
            b.alloc("communication", moved, "parts of inner dimensions")
            self._join("cut gradients", moved, inner)
            b.free("communication", moved, "parts of inner dimensions")
        seconds = self.c.costs.memory_s(float(numel * width + wire))
        packed = b.compute("copy in gradients", "collective", seconds, waits=waits)
        b.free("gradient", numel * width, group.name)
        reduced = own * self.reduce_width
        b.alloc("communication", reduced, "reduce-scatter output", stream=REDUCE)
        (done,) = self.divide(wire, self.divisors[0], (packed,))
        if self.n > 1:
            call = Call("reduce_scatter", self.shard_group, wire)
            done = self.c.beside(f"reduce-scatter {group.name}", call, (done,))
        self.reducing = wire, done
        if group in self.partly:
            done = self.c.aside("add sums of this replica", 3.0 * reduced, REDUCE, (done,))
        if not (self.last or self.s.all_reduces_each or self.s.replicas == 1):
            self._keep_partly(group, reduced)
            return
        if group in self.partly:
            self.partly.remove(group)
            b.free("gradient", reduced, f"{group.name} of this replica")
        done = self.reduce_over_replicas(reduced, done)
        (done,) = self.divide(reduced, self.divisors[1], (done,))
        self._store(group, own, done)

    def _keep_partly(self, group: Group, reduced: int) -> None:
        """Until the step's last micro-batch all-reduces the sums of all of them."""
        self.b.free("communication", reduced, "reduce-scatter output")
        if group not in self.partly:
            self.b.alloc("gradient", reduced, f"{group.name} of this replica", stream=REDUCE)
        self.partly.add(group)

    def _store(self, group: Group, own: int, done: int) -> None:
        """The reduction's output becomes the gradient, through a cast if types differ."""
        b, reduced = self.b, own * self.reduce_width
        if self.reduce_width == self.c.weight_bytes:
            b.free("communication", reduced, "reduce-scatter output")
            b.alloc("gradient", reduced, group.name, stream=REDUCE)
        else:
            b.alloc("gradient", own * self.c.weight_bytes, group.name, stream=REDUCE)
            moved = float(reduced + own * self.c.weight_bytes)
            done = self.c.aside("cast gradient shard", moved, REDUCE, (done,))
            if self.s.replicas > 1:
                self.all_reducing += reduced
            else:
                b.free("communication", reduced, "reduce-scatter output")
        self.keep_shard(group, own, done)
