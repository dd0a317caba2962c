"""Budgets: how much of the cluster each operator may use now.

Real counterpart: ``ResourceManager`` and ``ReservationOpResourceAllocator`` of
``_internal/execution/resource_manager.py``. Usage of the store is an estimate of the driver, from
blocks it knows: running tasks times what a generator may hold, blocks in queues, inputs of tasks.

Not modelled: heap memory as a resource, the thresholds for pressure and overshoot (off by
default), replacement of lost outputs as extra usage.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from raysim.raylibs.data.defaults import DataContext

if TYPE_CHECKING:
    from raysim.raylibs.data.operators import Operator


class Resources(NamedTuple):
    """CPUs, GPUs and bytes of the object store."""

    cpu: float = 0.0
    gpu: float = 0.0
    store: float = 0.0

    def plus(self, other: Resources) -> Resources:
        """Both."""
        return Resources(self.cpu + other.cpu, self.gpu + other.gpu, self.store + other.store)

    def minus(self, other: Resources) -> Resources:
        """What is left, at least nothing."""
        return Resources(
            max(self.cpu - other.cpu, 0.0),
            max(self.gpu - other.gpu, 0.0),
            max(self.store - other.store, 0.0),
        )

    def times(self, share: float) -> Resources:
        """A share of it."""
        return Resources(self.cpu * share, self.gpu * share, self.store * share)

    def most(self, other: Resources) -> Resources:
        """The larger of each."""
        return Resources(*map(max, self, other))

    def least(self, other: Resources) -> Resources:
        """The smaller of each."""
        return Resources(*map(min, self, other))

    def fits(self, limit: Resources, *, without_store: bool = False) -> bool:
        """Whether it is within the limit, but for rounding."""
        return (
            self.cpu <= limit.cpu + _EPSILON
            and self.gpu <= limit.gpu + _EPSILON
            and (without_store or self.store <= limit.store + _EPSILON)
        )


_EPSILON = 1e-6
NONE = Resources()
NO_LIMIT = Resources(math.inf, math.inf, math.inf)


class ResourceManager:
    """Usage and budgets of all operators of one execution."""

    def __init__(self, topology: list[Operator], context: DataContext) -> None:
        self.topology = topology
        self.context = context
        self.limits = NONE
        """CPUs, GPUs and store that this execution may use."""
        self.internal: dict[str, float] = {}
        """By operator: bytes that its tasks hold in generator buffers."""
        self.outputs: dict[str, float] = {}
        """Blocks taken from it that nobody has used yet."""
        self.usages: dict[str, Resources] = {}
        self.budgets: dict[str, Resources] = {}
        self.reserved: dict[str, Resources] = {}
        self.reserved_outputs: dict[str, float] = {}
        self.consumer_bytes = 0
        """Blocks that consumers hold, charged to the last operator."""
        self.has_consumer = True
        self.peak_bytes = 0.0

    # usage

    def update(self) -> None:
        """Usage and budgets of now."""
        for op in self.topology:
            each = op.metrics.max_pending_output_per_task or 0.0
            self.internal[op.name] = each * op.producing
            self.outputs[op.name] = self._outputs(op)
            used = 0.0 if not op.links.inputs else self.internal[op.name] + self.outputs[op.name]
            self.usages[op.name] = op.usage()._replace(store=used)
            op.metrics.peak_bytes = max(op.metrics.peak_bytes, int(used))
        self.peak_bytes = max(self.peak_bytes, sum(u.store for u in self.usages.values()))
        if self.context.op_resource_reservation_enabled and self.context.streaming:
            self._update_budgets()

    def _outputs(self, op: Operator) -> float:
        """Its queue, and what the next operators have taken and still hold."""
        if op.materializes:
            return 0.0  # What a shuffle holds is on disk when the store is full.
        held = float(op.links.out_bytes)
        for after in op.links.after:
            share = 1 / len(after.links.inputs)
            held += (after.internal[1] + after.metrics.input_bytes_pending) * share
        if not op.links.after:
            held += self.consumer_bytes
        return held

    # who takes part

    def eligible(self, op: Operator) -> bool:
        """Whether it is given a budget at all."""
        return op.throttled and not op.finished

    def _eligible_now(self) -> list[Operator]:
        """Those at or before the first barrier that has not ended."""
        found: list[Operator] = []
        for op in self.topology:
            if self.eligible(op):
                found.append(op)
            if op.materializes and not op.finished:
                break
        return found

    def ineligible_after(self, op: Operator) -> list[Operator]:
        """Operators right behind it that have no budget of their own: their usage is its."""
        found: list[Operator] = []
        for after in op.links.after:
            if not self.eligible(after):
                found += [after, *self.ineligible_after(after)]
        return found

    def eligible_after(self, op: Operator) -> list[Operator]:
        """The next operators with a budget."""
        found: list[Operator] = []
        for after in op.links.after:
            found += [after] if self.eligible(after) else self.eligible_after(after)
        return found

    def feeds_barrier(self, op: Operator) -> bool:
        """It is a barrier, or all it gives waits in one."""
        return op.materializes or any(after.materializes for after in self.ineligible_after(op))

    def outputs_with_ineligible(self, op: Operator) -> float:
        """Its outputs, and what operators without a budget behind it use."""
        extra = sum(self.usages[after.name].store for after in self.ineligible_after(op))
        return self.outputs[op.name] + extra

    # budgets

    def _update_budgets(self) -> None:
        ops = self._eligible_now()
        self.budgets.clear()
        if not ops:
            return
        left = self._charge(ops, self._reserve(ops))
        headroom: dict[str, Resources] = {}
        for index, op in enumerate(reversed(ops)):
            share = left.times(1 / (len(ops) - index))
            need = op.per_task()
            borrow = need.minus(self.budgets[op.name].plus(share))
            if borrow != NONE and share.plus(borrow).fits(left):
                share = share.plus(borrow)
            most = op.least_and_most()[1]
            if most != NO_LIMIT:
                reserved = self.reserved[op.name]
                reserved = reserved._replace(store=reserved.store + self.reserved_outputs[op.name])
                room = most.minus(reserved.most(self.usages[op.name]))
                share = share.least(room)
                headroom[op.name] = room.minus(share)
            left = left.minus(share)
            self.budgets[op.name] = self.budgets[op.name].plus(share)
        for op in reversed(ops):
            more = left.least(headroom.get(op.name, NO_LIMIT))
            self.budgets[op.name] = self.budgets[op.name].plus(more)
            left = left.minus(more)
        for op in ops:
            if self.feeds_barrier(op):
                self.budgets[op.name] = self.budgets[op.name]._replace(store=math.inf)

    def _reserve(self, ops: list[Operator]) -> Resources:
        """Half of all to each alike, a part of it for outputs; what is left is shared."""
        limits = self.limits.minus(self._used_by_finished())
        left = limits
        self.reserved.clear()
        self.reserved_outputs.clear()
        default = limits.times(self.context.op_resource_reservation_ratio / len(ops))
        for op in ops:
            for_outputs = max(default.store / 2, 1.0)
            least, most = op.least_and_most()
            for_tasks = default._replace(store=max(default.store - for_outputs, 0.0))
            for_tasks = for_tasks.most(least).least(most)
            if not for_tasks.fits(left, without_store=True):
                for_tasks = Resources(store=least.store)
            self.reserved[op.name] = for_tasks
            self.reserved_outputs[op.name] = for_outputs
            left = left.minus(for_tasks.plus(Resources(store=for_outputs)))
        return left

    def _used_by_finished(self) -> Resources:
        """Operators that have ended, and what is behind them without a budget."""
        counted: dict[str, None] = {}
        for op in self.topology:
            if op.finished:
                continue
            for before in op.links.inputs:
                if before.finished:
                    counted[before.name] = None
                    counted.update((a.name, None) for a in self.ineligible_after(before))
        used = NONE
        for name in counted:
            used = used.plus(self.usages[name])
        return used

    def _charge(self, ops: list[Operator], shared: Resources) -> Resources:
        """What each has left of its own; the shared part without what is over that."""
        for op in ops:
            over_outputs = self.outputs_with_ineligible(op) - self.reserved_outputs[op.name]
            store = self.internal[op.name] + max(over_outputs, 0.0)
            used = self.usages[op.name]._replace(store=store)
            self.budgets[op.name] = self.reserved[op.name].minus(used)
            shared = shared.minus(used.minus(self.reserved[op.name]))
        return shared

    # what the budgets allow

    def can_submit(self, op: Operator) -> bool:
        """Whether one task more is within the budget."""
        budget = self.budgets.get(op.name)
        if budget is None:
            return True
        if not op.per_task()._replace(store=0.0).fits(budget):
            return False
        return budget.store >= (op.metrics.max_pending_output_per_task or 0.0)

    def output_bytes_to_read(self, op: Operator) -> float | None:
        """How many bytes may be taken from its tasks; None: any."""
        budget = self.budgets.get(op.name)
        if budget is None:
            return None
        over = self.reserved_outputs[op.name] - self.outputs_with_ineligible(op)
        limit = budget.store + max(over, 0.0)
        return None if math.isinf(limit) else limit
