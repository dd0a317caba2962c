"""Which operator runs next, and how much output may be read.

Real counterpart: ``_internal/execution/backpressure_policy``, ``ranker.py`` and
``OutputBackpressureGuard`` and ``select_operator_to_run`` of ``streaming_executor_state.py``.

Not modelled: the adaptive part of the concurrency cap (off by default), the guard's last resort
after 10 s without output.
"""

from __future__ import annotations

from raysim.raylibs.data.operators import Operator
from raysim.raylibs.data.resources import ResourceManager


class Backpressure:
    """The policies of one execution."""

    def __init__(self, manager: ResourceManager) -> None:
        self.manager = manager
        self.context = manager.context

    def can_submit(self, op: Operator) -> bool:
        """No policy holds back a task of it: budget and downstream capacity.

        In bulk execution there is none, but what is before it must have ended.
        """
        if not self.context.streaming:
            return all(before.finished for before in op.links.inputs)
        if not self.manager.eligible(op):
            return True
        return self.manager.can_submit(op) and not self._downstream_full(op)

    def _downstream_full(self, op: Operator) -> bool:
        """Queued output is more than twice what the next operators work on."""
        ratio, manager = self.context.downstream_capacity_backpressure_ratio, self.manager
        if (
            ratio is None
            or not self.context.streaming
            or not manager.eligible(op)
            or manager.feeds_barrier(op)
        ):
            return False
        after = manager.eligible_after(op)
        if any(other.materializes for other in after):
            return False
        budget = manager.budgets.get(op.name)
        if budget is not None:
            used = manager.usages[op.name].store
            used += sum(manager.usages[a.name].store for a in manager.ineligible_after(op))
            whole = used + budget.store
            if whole and used / whole <= self.context.downstream_capacity_threshold:
                return False
        working: float = sum(other.metrics.input_bytes_pending for other in after)
        if not after:
            working = manager.consumer_bytes
        if not working:
            return False
        return manager.outputs_with_ineligible(op) / working - 1 > ratio

    def bytes_to_read(self, op: Operator, *, consumers_wait: bool) -> float | None:
        """Bytes that may be taken from its tasks now; None: any."""
        if not self.manager.eligible(op) and not op.tasks:
            return None
        limit = self.manager.output_bytes_to_read(op)
        if self._downstream_full(op):
            limit = 0.0
        if limit is not None and limit < 1 and self._starves(op, consumers_wait=consumers_wait):
            return 1.0
        return limit

    def _starves(self, op: Operator, *, consumers_wait: bool) -> bool:
        """Whoever is next has nothing: one block is let through whatever the budget."""
        after = self.manager.eligible_after(op)
        if not after:
            return consumers_wait or not self.manager.has_consumer
        for other in after:
            if not other.tasks:
                waits = other.links.waiting_blocks + other.internal[0]
                if not self.manager.can_submit(other) or not waits:
                    return True
        return False

    def select(self, topology: list[Operator], *, consumer_idle: bool) -> Operator | None:
        """The runnable operator that uses the store least; those without a budget first.

        When nothing runs at all and the consumer waits, one runs whatever the policies say.
        """
        runnable: list[Operator] = []
        held_back: list[Operator] = []
        for op in topology:
            if not op.finished and op.links.waiting and op.can_add_input():
                (runnable if self.can_submit(op) else held_back).append(op)
        if not runnable and consumer_idle and not any(op.tasks for op in topology):
            runnable = held_back
        if not runnable:
            return None
        return min(runnable, key=lambda op: (op.throttled, self.manager.usages[op.name].store))
