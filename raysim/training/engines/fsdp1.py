"""FSDP1, ``FullyShardedDataParallel``: one flat parameter per wrapped module.

Sources: ``torch/distributed/fsdp/_runtime_utils.py``, ``_flat_param.py``, ``_limiter_utils.py`` of
torch 2.13. An all-gather writes straight into the flat parameter, so nothing is copied out; the
host waits until at most two are ahead of the compute stream. Autograd writes gradients one by one
and then joins them into a flat one, so both exist for a moment.

Simplification: what ``record_stream`` keeps from reuse until the reduction has run is held until
the next group's reduction is issued. Reentrant activation checkpointing is not modelled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise

from raysim.training.engines.context import SCALAR_BYTES, EngineContext
from raysim.training.engines.fsdp import GATHER, REDUCE, Sharded, divisors
from raysim.training.layers.sections import Section, Unit
from raysim.training.program import Call
from raysim.training.states.wrapping import ALIGNMENT_BYTES, Group

MAX_INFLIGHT = 2
"""``_FreeEventQueue._max_num_inflight_all_gathers``."""


class Fsdp1(Sharded):
    """State per group: sharded, or whole and perhaps still on its way."""

    def __init__(self, context: EngineContext, sections: Sequence[Section]) -> None:
        super().__init__(context, sections)
        self.aligned = ALIGNMENT_BYTES // self.width if self.s.use_orig_params else 0
        self.reduces = self._reductions()
        self.whole: dict[Group, int] = {}
        """Bytes of unsharded flat parameters."""
        self.prefetched: set[Group] = set()
        self.gathered: dict[Group, int] = {}
        """All-gather that the next use waits for."""
        self.frees: deque[int] = deque()
        """Last kernels that read a flat parameter, whose ends the rate limiter waits for."""
        self.waits: list[int] = []
        self.start: tuple[int, ...] = ()
        """What all-gathers of this forward wait for: the optimizer."""
        self.order: list[Group] = []
        self.reducing = 0
        """Bytes that the last reduction still reads."""
        self.kept: set[Group] = set()
        self.divisors = divisors(context.ranks)

    def _reductions(self) -> dict[int, list[Group]]:
        """Groups whose flat gradient is complete after a unit's backward, inner ones first.

        Autograd runs what was recorded last first. Forward prefetch makes a group's views before
        the previous group computes, so its gradients are joined after that group's backward.
        """
        found: dict[int, list[Group]] = {}
        made = {g: max(g.reduce_at, self.reached) for g in self.groups}
        if self.s.forward_prefetch:
            order = sorted(self.groups, key=lambda g: (g.first, not g.root))
            for before, group in pairwise(order):
                made[group] = min(made[group], before.first)
        for group in sorted(self.groups, key=lambda g: (g.root, g.last - g.first)):
            found.setdefault(made[group], []).append(group)
        return found

    def norm_bytes(self) -> int:
        """``FullyShardedDataParallel.clip_grad_norm_`` sums one number."""
        return SCALAR_BYTES

    def _flat(self, group: Group) -> int:
        """Elements of the flat parameter, padded to a multiple of the ranks."""
        return group.flat_numel(self.n, aligned=self.aligned)

    def own_numel(self, group: Group) -> int:
        """One chunk of the flat parameter."""
        return self._flat(group) // self.n

    def own_trainable(self, group: Group) -> int:
        """Of a chunk, all, or among frozen ones a rank's share of what is trained.

        Its gradient is as long as the flat parameter either way, but the optimizer sees original
        parameters.
        """
        if len(group.trainable) < len(group.tensors):
            return -(-sum(t.numel for t in group.trainable) // self.n)
        return self.own_numel(group)

    def own_sizes(self, group: Group) -> Sequence[int]:
        """The chunk, or the pieces of original parameters that rank 0's chunk holds.

        Of few among frozen ones, some rank has all.
        """
        if len(group.trainable) < len(group.tensors):
            return [-(-t.numel // self.n) for t in group.trainable]
        left = self.own_numel(group)
        if not self.s.use_orig_params:
            return (left,)
        sizes = []
        for tensor in group.tensors:
            if left <= 0:
                break
            sizes.append(min(tensor.numel, left))
            left -= tensor.numel
        return sizes

    def begin_forward(self) -> None:
        """The root's pre-forward: unshard streams wait for the optimizer."""
        self.start = self.b.last_on("compute")

    def pre_forward(self, group: Group) -> None:
        """Gather unless it was prefetched; perhaps prefetch the next."""
        self._ready(group)
        if self.s.forward_prefetch:
            following = [g for g in self.groups if g.first > group.first]
            if following:
                self._prefetch(min(following, key=lambda g: g.first))

    def post_forward(self, group: Group) -> None:
        """Free all but the root's, by strategy."""
        self.order.append(group)
        if not self.s.shards or (group.frees and not group.root):
            self._free(group)
        self.prefetched.discard(group)

    def pre_backward(self, group: Group) -> None:
        """Gather unless it was prefetched; ``BACKWARD_PRE`` prefetches before the gradients."""
        self._ready(group)
        if self.s.backward_prefetch == "BACKWARD_PRE":
            self._prefetch_before(group)

    def need(self, group: Group) -> None:
        """Recomputed inside a larger checkpoint."""
        self._ready(group)

    def ends_backward(self, i: int) -> Sequence[Group]:
        """When the last of its gradients is there."""
        return self.reduces.get(i, ())

    def post_backward(self, group: Group) -> None:
        """Reshard, perhaps prefetch, reduce."""
        if group.trainable:
            self._flatten(group)
        if self.boundary or self.s.frees or not self.s.shards:
            self._free(group)
        self.prefetched.discard(group)
        if self.s.backward_prefetch == "BACKWARD_POST":
            self._prefetch_before(group)
        if group.trainable and self.boundary:
            self._reduce(group)
        elif group.trainable:
            self.kept.add(group)

    def take_waits(self) -> Sequence[int]:
        """All-gathers of the groups just opened."""
        waits, self.waits = tuple(self.waits), []
        return waits

    def end_backward(self) -> None:
        """The root's final callback."""
        super().end_backward()
        self.b.free("communication", self.reducing, "reduction")
        self.reducing = 0
        self.order.clear()
        self.prefetched.clear()

    def _ready(self, group: Group) -> None:
        if group not in self.prefetched:
            self._unshard(group)
        if group in self.gathered:
            self.waits.append(self.gathered.pop(group))

    def _prefetch(self, group: Group) -> None:
        if group not in self.prefetched and group not in self.open:
            self._unshard(group)
            self.prefetched.add(group)

    def _prefetch_before(self, group: Group) -> None:
        at = self.order.index(group)
        if at:
            self._prefetch(self.order[at - 1])

    def _unshard(self, group: Group) -> None:
        """Cast or fetch the shard, wait for the rate limiter, all-gather."""
        b, c = self.b, self.c
        whole = group in self.whole
        own = self.own_numel(group)
        waits: tuple[int, ...] = ()
        staged = 0
        if not whole:
            waits = (*self.start, *self.shards_to_gpu(group))
            staged = own * (self.width if self.casts else 0)
            staged += self.own_bytes(group) if self.s.cpu_offload else 0
            if self.s.shards:
                b.alloc("communication", staged, "low-precision shard")
            if self.casts:
                waits = self.cast_shards(group, waits)
        if self.s.limit_all_gathers and len(self.frees) >= MAX_INFLIGHT:
            b.sync("rate limiter", (self.frees.popleft(),))
        if whole:
            return
        size = round(self._flat(group) * group.element_bytes(self.width))
        if not self.s.shards:
            # The low-precision copy is the parameter; in its own type the shard itself is.
            size = staged
            if waits:
                self.gathered[group] = waits[-1]
        self.whole[group] = size
        b.alloc("gathered_parameter", size, group.name)
        if self.s.shards:
            if self.n > 1:
                call = Call("all_gather", self.shard_group, size)
                gathered = self.c.beside(f"all-gather {group.name}", call, waits)
            else:
                gathered = b.compute(
                    "copy", "collective", c.costs.memory_s(2.0 * size), stream=GATHER, waits=waits
                )
            self.gathered[group] = gathered
            b.free("communication", staged, "low-precision shard")

    def _free(self, group: Group) -> None:
        size = self.whole.pop(group, 0)
        self.b.free("gathered_parameter", size, group.name)
        if self.s.shards:
            self.frees.append(self.last_op)

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """Gradients are joined into the flat one, and added to that of earlier micro-batches."""
        unit = self.reduced(unit)
        if not unit.gradients:
            return 0.0, 0
        passes = 2.0 + (3.0 if self.owner[id(unit)] in self.kept else 0.0)
        return self.c.costs.memory_s(passes * unit.numel * self.width), 1

    def _flatten(self, group: Group) -> None:
        """The backward of the split that made views: single gradients, then the flat one."""
        single = sum(t.numel for t in group.trainable) * self.width
        self.b.alloc("gradient", self._flat_gradient(group), f"{group.name} flat")
        self.b.free("gradient", single, group.name)
        if group in self.kept:
            self.b.free("gradient", self._flat_gradient(group), f"{group.name} flat")

    def _flat_gradient(self, group: Group) -> int:
        """Without alignment the flat parameter ends where its last tensor does."""
        numel = self._flat(group) if self.aligned else sum(t.numel for t in group.tensors)
        return numel * self.width

    def _reduce(self, group: Group) -> None:
        """Cast, pad, divide, reduce, divide, cast back, on the post-backward stream."""
        b = self.b
        self.kept.discard(group)
        flat = self._flat(group)
        wire, own = flat * self.reduce_width, flat // self.n
        waits = b.last_on("compute")
        b.free("communication", self.reducing, "reduction")
        b.free("gradient", self._flat_gradient(group), f"{group.name} flat")
        self.reducing = self._flat_gradient(group)
        b.alloc("communication", self.reducing, "flat gradient being reduced")
        moved = 0.0
        if self.reduce_width != self.width:
            moved += float(flat * (self.width + self.reduce_width))
            b.alloc("communication", wire, "gradient in the reduction's type")
            self.reducing += wire
        if flat * self.width != self._flat_gradient(group):
            moved += 2.0 * wire
            b.alloc("communication", wire, "padded gradient")
            self.reducing += wire
        if moved:
            waits = (self.c.aside("cast and pad", moved, REDUCE, waits),)
        waits = self.divide(wire, self.divisors[0], waits)
        if self.s.shards:
            self._scatter(group, wire, own, waits)
        else:
            self._all_reduce(group, wire, waits)

    def _scatter(self, group: Group, wire: int, own: int, waits: tuple[int, ...]) -> None:
        b = self.b
        reduced, stored = own * self.reduce_width, own * self.c.weight_bytes
        b.alloc("communication", reduced, "reduce-scatter output")
        if self.n > 1:
            call = Call("reduce_scatter", self.shard_group, wire)
            done = self.c.beside(f"reduce-scatter {group.name}", call, waits)
        else:
            seconds = self.c.costs.memory_s(float(wire + reduced))
            done = b.compute("copy gradient", "collective", seconds, stream=REDUCE, waits=waits)
        done = self.reduce_over_replicas(reduced, done)
        (done,) = self.divide(reduced, self.divisors[1], (done,))
        b.alloc("gradient", stored, group.name)
        if self.reduce_width != self.c.weight_bytes:
            done = self.c.aside("cast gradient shard", float(reduced + stored), REDUCE, (done,))
        b.free("communication", reduced, "reduce-scatter output")
        self.keep_shard(group, own, done)

    def _all_reduce(self, group: Group, wire: int, waits: tuple[int, ...]) -> None:
        """``NO_SHARD``: the flat gradient, whole, in the parameter's type afterwards."""
        b, flat = self.b, self._flat(group)
        b.alloc("gradient", flat * self.c.weight_bytes, group.name)
        done = waits[-1]
        if self.c.ranks > 1:
            call = Call("all_reduce", "dp", wire)
            done = self.c.beside(f"all-reduce {group.name}", call, waits)
            (done,) = self.divide(wire, self.divisors[1], (done,))
        if self.reduce_width != self.c.weight_bytes:
            moved = float(wire + flat * self.c.weight_bytes)
            done = self.c.aside("cast gradient", moved, REDUCE, (done,))
        self.keep_shard(group, flat, done)
