"""A unit of a stage, as operations: what its engine and its peers do around its kernels.

The compiler says which unit runs next, and why; here it becomes operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from raysim.perf.compute import ComputeModel
from raysim.training.engines.choice import piped
from raysim.training.engines.context import Engine
from raysim.training.engines.ddp import Ddp
from raysim.training.layers.sections import Unit
from raysim.training.layers.sharding import Exchange
from raysim.training.program import COMPUTE, Call, ProgramBuilder

HELD = "model's output", "model's output, by turns"
"""Two are there at once: the older one goes."""
WAITING = "waiting gradient"
OUTSIDE = "Loss"
"""Class of a traced loss that the training loop computes, not the model."""


class UnitEmitter:
    """Emits units one after the other; keeps what the next operation must wait for."""

    def __init__(self, builder: ProgramBuilder, costs: ComputeModel, engine: Engine) -> None:
        self.b = builder
        self.costs = costs
        self.engine = engine
        """Of the chunk at work."""
        self.lasting = HELD[1], 0
        """The model's output that the training loop still holds: its label, bytes."""
        self.waiting = Counter[int]()
        """Sizes of the gradients that wait for others."""
        self.handed: list[tuple[str, int, int]] = []
        """Outputs in memory that nothing keeps: labels, bytes, how many units read them yet."""
        self.pending: tuple[int, ...] = ()
        """What the next operation on the compute stream waits for."""
        self.sums_late = isinstance(engine, Ddp) or piped(engine) is not None
        """Gradients of replicated weights are summed when they are reduced, or used."""

    def join(self, waits: tuple[int, ...]) -> None:
        """The next operation on the compute stream waits for these."""
        self.pending += waits

    def take_pending(self) -> tuple[int, ...]:
        """The same, which is then taken care of."""
        pending, self.pending = self.pending, ()
        return pending

    def forward(self, unit: Unit, phase: str, *, keep: bool) -> None:
        """``forward`` or ``recompute``; ``keep`` what backward needs."""
        b = self.b
        self._communicate(unit, unit.exchanges.before_forward, b.last_on(COMPUTE))
        waits = (*self.engine.before(unit, phase), *self.take_pending())
        beside = self._beside(unit, unit.exchanges.beside_forward, waits)
        earlier = self.lasting[0], 0
        if unit.temp_category == "logits":
            self.end_forward()  # what a loss reads is its own account's
        if keep:
            self._hand_over(unit.saved)
            b.alloc("activation", sum(unit.saved), unit.name, tensors=unit.saved)
            earlier = self._output(unit)
            b.alloc("logits", unit.loss_bytes, unit.name, tensors=unit.loss_saved)
            self._hand_on(unit, late=False)
        parts = unit.forward_temps if keep else (*(n for n, *_ in unit.left), *unit.forward_temps)
        b.alloc(unit.temp_category, sum(parts), unit.name, tensors=parts)
        seconds, host_s, flops, after = unit.run(phase)
        op = b.compute(unit.name, phase, seconds, host_s=host_s, waits=waits, flops=flops)
        if unit.syncs:
            b.sync(f"scalars of {unit.name}", (op,))
        b.free(unit.temp_category, sum(parts), unit.name)
        if keep:
            self._hand_on(unit, late=True)
            b.alloc("activation", sum(unit.saved_late), unit.name, tensors=unit.saved_late)
        self._read_for_the_last_time()
        b.free("logits", earlier[1], earlier[0])
        self.join(beside)
        self._communicate(unit, after, (op,))
        self.engine.after(unit, phase, op)

    def _hand_on(self, unit: Unit, *, late: bool) -> None:
        """What the next units read; this one's reading is counted too."""
        label = f"left by {unit.name}"
        for size, units, is_late in unit.left:
            if is_late == late:
                self.handed.append((label, size, units + 1))
                self.b.alloc("temporary", size, label)

    def _hand_over(self, kept: Sequence[int]) -> None:
        """What a unit is about to keep may be what an earlier one has made."""
        sizes = Counter(kept)
        for each in list(self.handed):
            label, size, units = each
            if units == 1 and sizes[size]:
                sizes[size] -= 1
                self.handed.remove(each)
                self.b.free("temporary", size, label)

    def _read_for_the_last_time(self) -> None:
        left = [(label, size, units - 1) for label, size, units in self.handed]
        for label, size, units in left:
            if not units:
                self.b.free("temporary", size, label)
        self.handed = [each for each in left if each[2]]

    def end_forward(self) -> None:
        """Nobody reads anything any more."""
        for label, size, _ in self.handed:
            self.b.free("temporary", size, label)
        self.handed = []

    def _output(self, unit: Unit) -> tuple[str, int]:
        """The model's output is there; of the one before it, what is to be freed later.

        A loss within the model keeps the training loop from letting go of it now.
        """
        size, (label, earlier) = sum(unit.lasting), self.lasting
        if not size:
            return label, 0
        self.lasting = HELD[label == HELD[0]], size
        self.b.alloc("logits", size, self.lasting[0], tensors=unit.lasting)
        if all(m.cls != OUTSIDE for m in unit.modules):
            return label, earlier
        self.b.free("logits", earlier, label)
        return label, 0

    def _communicate(self, unit: Unit, calls: Sequence[Exchange], waits: Sequence[int]) -> None:
        """Collectives one after the other; what comes next waits for the last."""
        if calls:
            self.join(self._in_turn(unit, calls, (*waits, *self.take_pending())))

    def _at_once(self, calls: Sequence[Exchange]) -> Sequence[Exchange]:
        """Without those of gradients that wait for the end of the step."""
        return [c for c in calls if not c.of_weights] if self.sums_late else calls

    def _beside(
        self, unit: Unit, calls: Sequence[Exchange], waits: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The same beside the unit's compute, from when that could begin."""
        if not calls:
            return ()
        return self._in_turn(unit, calls, (*waits, *self.b.last_on(COMPUTE)))

    def _in_turn(
        self, unit: Unit, calls: Sequence[Exchange], waits: tuple[int, ...]
    ) -> tuple[int, ...]:
        for call in calls:
            if call.moved_bytes and call.op == "reduce_scatter":
                waits = (self._rearrange(unit, call, waits),)
            name = f"{call.op.replace('_', '-')} {unit.name}"
            waits = (
                self.b.collective(name, Call(call.op, call.group, call.size_bytes), waits=waits),
            )
            if call.moved_bytes and call.op == "all_gather":
                waits = (self._rearrange(unit, call, waits),)
        return waits

    def _rearrange(self, unit: Unit, call: Exchange, waits: tuple[int, ...]) -> int:
        seconds = self.costs.memory_s(call.moved_bytes)
        return self.b.compute(f"rearrange {unit.name}", "collective", seconds, waits=waits)

    def backward(self, unit: Unit) -> None:
        """Input and weight gradients; the output's is there before anything else."""
        self._sum(unit)
        waits = tuple(self.engine.before(unit, "backward"))
        extra_s, extra_launches = self.engine.backward_extra(unit)
        op = self._gradient(
            unit,
            unit.backward_s + extra_s,
            host_s=unit.backward_host_s + extra_launches * self.costs.host.eager_s,
            waits=waits,
            flops=unit.backward_flops,
            tail_s=unit.backward_tail_s,
        )
        if unit.syncs_backward:
            self.b.sync(f"scalars of {unit.name}", (op,))
        self.engine.after(unit, "backward", op)

    def _sum(self, unit: Unit) -> None:
        """The output's gradient: one that waited, or the sum of it and another.

        Then some of those that the unit before has made begin to wait.
        """
        b, now = self.b, Counter(unit.waiting)
        begin, parts = now - self.waiting, tuple((self.waiting - now).elements())
        added = parts if unit.summed else ()
        if not unit.summed:
            self._wait_no_more(parts)
        b.alloc("temporary", sum(added), "added gradients", tensors=added)
        self._hold(unit, unit.backward_temps[:1])
        b.free("temporary", sum(added), "added gradients")
        self._wait_no_more(added)
        for size in begin.elements():
            b.alloc("temporary", size, WAITING)
        self.waiting = now

    def end_backward(self) -> None:
        """Nothing waits any more."""
        self._wait_no_more(self.waiting.elements())
        self.waiting = Counter()

    def _wait_no_more(self, sizes: Iterable[int]) -> None:
        for size in sizes:
            self.b.free("temporary", size, WAITING)

    def _hold(self, unit: Unit, parts: Sequence[int]) -> None:
        """Tensors that live within a unit's backward."""
        self.b.alloc(unit.temp_category, sum(parts), unit.name, tensors=parts)

    def _gradient(
        self,
        unit: Unit,
        seconds: float,
        *,
        host_s: float,
        waits: tuple[int, ...],
        flops: float,
        tail_s: float = 0.0,
    ) -> int:
        """A unit's backward; the last ``tail_s`` of it runs beside what follows it."""
        b, around = self.b, unit.exchanges
        self._communicate(unit, around.before_backward, (*waits, *b.last_on(COMPUTE)))
        waits = (*waits, *self.take_pending())
        beside = self._beside(unit, around.beside_backward, waits)
        self._hold(unit, unit.backward_temps[1:])
        op = b.compute(
            unit.name, "backward", seconds - tail_s, host_s=host_s, waits=waits, flops=flops
        )
        self._communicate(unit, self._at_once(around.after_backward), (op,))
        if tail_s:
            op = b.compute(unit.name, "backward", tail_s, launches=0, waits=(op, *beside))
        else:
            self.join(beside)
        for parts in (unit.backward_temps[1:], unit.backward_temps[:1]):
            b.free(unit.temp_category, sum(parts), unit.name)
        for kept in (unit.saved_late, unit.saved):
            b.free("activation", sum(kept), unit.name)
        b.free("logits", unit.loss_bytes, unit.name)
        return op

    def input_gradient(self, unit: Unit) -> None:
        """Input gradients alone; what weight gradients need stays."""
        self._hold(unit, unit.backward_temps[:1])
        self._gradient(
            unit,
            unit.backward_s - unit.weights.seconds,
            host_s=unit.backward_host_s,
            waits=(),
            flops=unit.backward_flops - unit.weights.flops,
        )
        self.b.alloc("activation", unit.weights.kept_bytes, f"{unit.name} for weight gradients")

    def weight_gradient(self, unit: Unit) -> None:
        """Weight gradients, put off until now."""
        waits = (*self.engine.before(unit, "backward"), *self.take_pending())
        extra_s, extra_launches = self.engine.backward_extra(unit)
        op = self.b.compute(
            f"{unit.name} weights",
            "backward",
            unit.weights.seconds + extra_s,
            host_s=unit.weights.host_s + extra_launches * self.costs.host.eager_s,
            waits=waits,
            flops=unit.weights.flops,
        )
        self.b.free("activation", unit.weights.kept_bytes, f"{unit.name} for weight gradients")
        self.engine.after(unit, "backward", op)
