"""What FSDP1 and FSDP2 share: which group is open when, sharded states, norm and optimizer step.

Torch hooks a wrapped module before and after its forward, and before and after its backward. Here a
``Group`` spans the units between its first and its last; spans nest as modules do, the root's is
the whole model. Sources: ``torch/distributed/fsdp`` of 2.13, by file in ``fsdp1`` and ``fsdp2``.

Activation checkpointing is torch's non-reentrant one, inside the wrapped module: its recomputation
begins after the pre-backward hook, so it shares backward's all-gather.

Ignored parameters lie whole on every rank, on the GPU even under CPU offload; autograd leaves and
adds up their gradients as without FSDP, in the type they are stored in, and nobody reduces them.

Not modelled: parameters without gradients in some steps, the first iteration. Rank 0, which holds
the most where rows do not divide, stands for all.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from raysim.models.table import COMPUTE_DTYPE_BYTES
from raysim.perf.host import FSDP_HOOK_S
from raysim.training.engines.context import EngineContext
from raysim.training.layers.sections import Section, Unit
from raysim.training.program import CPU, D2H, H2D, Call
from raysim.training.states.wrapping import Group, Tensor, ignored_tensors, make_groups

GATHER = "gather"
"""Stream of what precedes an all-gather: casts, copies in."""
REDUCE = "reduce"
"""Stream of what follows a reduction."""
CPU_ADAM_PASSES_BYTES = {True: 28.0, False: 80.0}
"""Bytes moved per element by ``torch.optim.AdamW`` on the CPU, fused or not: parameter, moments and
gradient once; or ``mul``, ``lerp``, ``mul``, ``addcmul``, ``sqrt``, ``div``, ``add`` and
``addcdiv`` one after the other (``torch/optim/adam.py``)."""


class Sharded:
    """Walks units in program order and calls the version's hooks; owns the states."""

    def __init__(self, context: EngineContext, sections: Sequence[Section]) -> None:
        c = self.c = context
        self.s = c.plan.fsdp
        self.b = c.builder
        self.n = self.s.shard_ranks(c.ranks)
        mesh = c.plan.mesh
        self.groups = make_groups(c.plan.model, c.units, self.s, mesh.tp, piped=mesh.pp > 1)
        self.ignored = ignored_tensors(c.plan.model, c.units, self.s, mesh.tp)
        self.left: set[int] = set()
        """Units that have left gradients of ignored parameters in this step."""
        self.width = COMPUTE_DTYPE_BYTES[c.plan.compute_dtype]
        self.reduce_width = COMPUTE_DTYPE_BYTES[self.s.reduce_dtype or c.plan.compute_dtype]
        replicated = self.s.replicas > 1
        self.shard_group = f"dp_shard:{self.n}" if replicated else "dp"
        self.replica_group = f"dp_replicate:{self.n}"
        self.place = {id(unit): i for i, unit in enumerate(c.units)}
        self.owner = self._owners()
        self.recompute_ends = _recompute_ends(sections)
        outer_first = sorted(self.groups, key=lambda g: (not g.root, g.first - g.last))
        self.opens = _by(outer_first, [g.first for g in outer_first])
        self.closes = _by(outer_first, [g.last for g in outer_first])
        self.reached = next((i for i, unit in enumerate(c.units) if unit.has_backward), 0)
        """The first unit in forward order that backward gets to: its last."""
        self.open: set[Group] = set()
        """Groups whose pre-backward hook has run."""
        self.boundary = self.last = False
        """Whether the backward reduces gradients, and whether it is the step's last."""
        self.last_op = -1
        """Of the unit that ran last."""
        self.synced: set[Group] = set()
        """Groups that hold a sharded gradient of this optimizer step."""
        self.reductions: dict[str, int] = {}
        """Last operation after a reduction, by stream."""

    def _owners(self) -> dict[int, Group]:
        """Group of the parameters that a unit's own gradients belong to, by the unit's ``id``."""
        of = {t.name: g for g in self.groups for t in g.tensors}
        firsts = ((u, next((g for g in u.gradients if g.name in of), None)) for u in self.c.units)
        return {id(u): of[first.name] for u, first in firsts if first is not None}

    def reduced(self, unit: Unit) -> Unit:
        """Without gradients of ignored parameters."""
        ignored = self.s.ignored
        if not ignored or all(g.name not in ignored for g in unit.gradients):
            return unit
        return replace(unit, gradients=tuple(g for g in unit.gradients if g.name not in ignored))

    @property
    def casts(self) -> bool:
        """Whether all-gathers carry another type than shards are stored in."""
        return self.width != self.c.weight_bytes

    def own_numel(self, group: Group) -> int:
        """Elements of a group that this rank stores."""
        raise NotImplementedError

    def own_bytes(self, group: Group) -> int:
        """Of those elements, as they are stored."""
        return round(self.own_numel(group) * group.element_bytes(self.c.weight_bytes))

    def own_trainable(self, group: Group) -> int:
        """Those of them that get gradients."""
        raise NotImplementedError

    def own_sizes(self, group: Group) -> Sequence[int]:
        """Elements of each tensor that the optimizer sees."""
        raise NotImplementedError

    def pre_forward(self, group: Group) -> None:
        """The wrapped module's forward is about to run."""
        raise NotImplementedError

    def post_forward(self, group: Group) -> None:
        """It has run."""
        raise NotImplementedError

    def pre_backward(self, group: Group) -> None:
        """The gradient of its output is there."""
        raise NotImplementedError

    def post_backward(self, group: Group) -> None:
        """All gradients of its parameters are there."""
        raise NotImplementedError

    def need(self, group: Group) -> None:
        """A recomputation inside a larger checkpoint reads its parameters."""
        raise NotImplementedError

    def ends_backward(self, i: int) -> Sequence[Group]:
        """Groups whose post-backward hook runs after unit ``i``'s backward."""
        raise NotImplementedError

    def setup(self) -> None:
        """Shards of weights and optimizer states; in main memory under CPU offload."""
        beside = sum(t.numel * t.whole_bytes for g in self.groups for t in g.tensors)
        self.b.alloc("parameter", beside, "scales")
        # torch.optim keeps its states in the parameters' dtype.
        states = self.c.state_bytes * self.c.weight_bytes / 4
        whole = sum(t.numel for t in self.ignored) * self.c.weight_bytes
        self.b.alloc("parameter", whole, "ignored weights")
        self.b.alloc("optimizer_state", sum(self._ignored_sizes) * states, "of ignored weights")
        if self.s.cpu_offload:
            return
        self.b.alloc("parameter", sum(map(self.own_bytes, self.groups)), "weight shards")
        self.b.alloc("optimizer_state", self.own * states, "optimizer states")

    @property
    def own(self) -> int:
        """Trainable elements of shards that this rank stores and steps."""
        return sum(self.own_trainable(g) for g in self.groups)

    @property
    def _ignored_sizes(self) -> list[int]:
        """Elements of ignored parameters that get gradients."""
        return [t.numel for t in self.ignored if t.trainable]

    def begin_forward(self) -> None:
        """A version may have to order its streams."""

    def begin_backward(self, *, boundary: bool) -> None:
        """Gradients are reduced in the last micro-batch, or in each."""
        self.boundary, self.last = boundary or self.s.sync_every_micro_batch, boundary

    def alike(self) -> Hashable:
        """What is gathered ahead, and what is in flight, decide."""
        return None

    def resume(self, state: Hashable) -> None:
        """Passes that are alike leave it as they find it."""

    def before(self, unit: Unit, phase: str) -> Sequence[int]:
        """Open groups; make room for gradients."""
        i = self.place[id(unit)]
        if phase == "forward":
            for group in self.opens.get(i, ()):
                self.b.hook(FSDP_HOOK_S)
                self.pre_forward(group)
        elif phase == "recompute":
            end = self.recompute_ends.get(i, -1)
            for group in self.closes.get(end, ()):
                if group.first <= i:
                    self._open_backward(group)
            for group in self.opens.get(i, ()):
                self.need(group)
        else:
            for group in self.closes.get(i, ()):
                self._open_backward(group)
            self.b.alloc("gradient", self.reduced(unit).numel * self.width, unit.name)
            self._leave_ignored(unit)
        return self.take_waits()

    def _leave_ignored(self, unit: Unit) -> None:
        """Gradients that stay until they are zeroed."""
        numel = unit.numel - self.reduced(unit).numel
        if numel and id(unit) not in self.left:
            self.left.add(id(unit))
            self.b.alloc("gradient", numel * self.c.weight_bytes, f"{unit.name} ignored")

    def take_waits(self) -> Sequence[int]:
        """What the unit about to run must wait for."""
        return ()

    def _open_backward(self, group: Group) -> None:
        if group not in self.open:
            self.open.add(group)
            self.b.hook(FSDP_HOOK_S)
            self.pre_backward(group)

    def after(self, unit: Unit, phase: str, op: int) -> None:
        """Close groups, inner ones first."""
        self.last_op = op
        i = self.place[id(unit)]
        if phase == "forward":
            for group in reversed(self.closes.get(i, ())):
                self.b.hook(FSDP_HOOK_S)
                self.post_forward(group)
        elif phase == "backward":
            for group in self.ends_backward(i):
                if group in self.open:
                    self.b.hook(FSDP_HOOK_S)
                    self.post_backward(group)

    def backward_extra(self, unit: Unit) -> tuple[float, int]:
        """What a unit's backward pays for joining or adding gradients."""
        raise NotImplementedError

    def end_backward(self) -> None:
        """The compute stream waits for every reduction."""
        self.open.clear()
        if self.reductions:
            waits = tuple(self.reductions.values())
            self.b.compute("gradients reduced", "collective", 0.0, launches=0, waits=waits)
            self.reductions.clear()

    def reduce_gradients(self) -> None:
        """Everything is reduced already."""

    def reduce_over_replicas(self, own_bytes: int, done: int) -> int:
        """Hybrid sharding sums shards over replicas on a stream of its own."""
        if self.s.replicas == 1:
            return done
        call = Call("all_reduce", self.replica_group, own_bytes)
        return self.b.collective("all-reduce over replicas", call, waits=(done,))

    def keep_shard(self, group: Group, own: int, done: int) -> None:
        """The sharded gradient is there: keep it, add it to the one before, or offload it."""
        stored = own * self.c.weight_bytes
        if self.s.cpu_offload:
            # Pinned and asynchronous unless it is added to one that is there already.
            pinned = self.pins and group not in self.synced
            copy = self.c.copy_s(float(stored), "d2h", pinned=pinned)
            self.reductions["d2h"] = self.b.copy("gradients to host", D2H, copy, (done,))
            self.b.free("gradient", stored, group.name)
        elif group in self.synced:
            done = self.c.aside(
                "accumulate shard", 3.0 * stored, REDUCE, (done,), launches=len(group.tensors)
            )
            self.b.free("gradient", stored, group.name)
        self.synced.add(group)
        self.reductions[REDUCE] = done

    @property
    def pins(self) -> bool:
        """Whether offloaded shards are in pinned memory."""
        return self.s.version == 1 or self.s.pin_memory

    def step(self) -> None:
        """Clip, step over the shards, ``zero_grad(set_to_none=True)``."""
        c, b, ignored = self.c, self.b, self._ignored_sizes
        self.synced.clear()
        self.left.clear()
        if self.s.cpu_offload:
            self._step_on_cpu()
            if ignored:
                c.optimizer_step(
                    sum(ignored), low_precision_copy=False, sizes=ignored,
                    element_bytes=c.weight_bytes,
                )  # fmt: skip
                b.free_all("gradient", "zero_grad")
            return
        sizes = [size for g in self.groups for size in self.own_sizes(g)] + ignored
        own = self.own + sum(ignored)
        if c.plan.gradient_clipping > 0:
            held = float(own * c.weight_bytes)
            c.scan("gradient norm", held, len(sizes))
            arrived = self._sum_norm(b.last_on("compute"))
            c.scan("clip gradients", 2.0 * held, len(sizes), waits=arrived)
        c.optimizer_step(own, low_precision_copy=False, sizes=sizes, element_bytes=c.weight_bytes)
        b.free_all("gradient", "zero_grad")

    def norm_bytes(self) -> int:
        """What is summed over the ranks that share the parameters."""
        raise NotImplementedError

    def _sum_norm(self, waits: Sequence[int]) -> tuple[int, ...]:
        """Over the ranks that share the parameters; the host does not wait for it."""
        found = tuple(waits)
        for group, ranks in ((self.shard_group, self.n), ("tp", self.c.plan.mesh.tp)):
            if ranks > 1:
                call = Call("all_reduce", group, self.norm_bytes())
                found = (self.b.collective("gradient norm", call, waits=found),)
        return found

    def _step_on_cpu(self) -> None:
        """Torch's optimizer on the CPU, where shards, gradients and states are."""
        c, b = self.c, self.b
        arrived = (*b.last_on(D2H), *b.last_on("compute"))
        b.sync("wait for gradients", arrived)
        if c.plan.gradient_clipping > 0:
            passes = c.host_pass_s(3.0 * 4 * self.own)
            norm = b.background("norm and clip on CPU", CPU, "offload", passes)
            b.sync("gradient norm", self._sum_norm((norm,)))
        moved = CPU_ADAM_PASSES_BYTES[c.plan.optimizer.fused] * self.own
        seconds = c.host_pass_s(moved)
        done = b.background(c.plan.optimizer.type, CPU, "offload", seconds, b.last_on(CPU))
        b.sync("wait for the optimizer", (done,))

    def divide(self, size_bytes: float, divisor: float, waits: tuple[int, ...]) -> tuple[int, ...]:
        """Gradients in place, unless by 1."""
        if divisor <= 1:
            return waits
        return (self.c.aside("divide gradients", 2.0 * size_bytes, REDUCE, waits),)

    def shards_to_gpu(self, group: Group) -> tuple[int, ...]:
        """Under CPU offload the shard travels before it is gathered."""
        if not self.s.cpu_offload:
            return ()
        size = float(self.own_bytes(group))
        copy_s = self.c.copy_s(size, "h2d", pinned=self.pins)
        return (self.b.copy(f"shards of {group.name}", H2D, copy_s),)

    def cast_shards(self, group: Group, waits: Sequence[int]) -> tuple[int, ...]:
        """A copy of the shard in the all-gather's type, which the caller allocates and frees."""
        moved = self.own_numel(group) * float(self.c.weight_bytes + self.width)
        return (self.c.aside("cast shards", moved, GATHER, waits),)


def divisors(ranks: int) -> tuple[float, float]:
    """What gradients are divided by before and after they are reduced, a pass for each.

    About the root of the ranks' number both times, for fear of overflow.
    """
    before = 1
    while ranks % before == 0 and ranks / before > before:
        before *= 2
    return before, ranks / before


def trainable_numel(tensors: Sequence[Tensor]) -> int:
    """Elements that get gradients."""
    return sum(t.numel for t in tensors if t.trainable)


def _by(groups: Sequence[Group], at: Sequence[int]) -> dict[int, tuple[Group, ...]]:
    found: dict[int, tuple[Group, ...]] = {}
    for group, i in zip(groups, at, strict=True):
        found[i] = (*found.get(i, ()), group)
    return found


def _recompute_ends(sections: Sequence[Section]) -> dict[int, int]:
    """Last unit of every checkpointed section by its first."""
    ends, at = {}, 0
    for section in sections:
        if section.checkpointed:
            ends[at] = at + len(section.units) - 1
        at += len(section.units)
    return ends
