"""``mix``: blocks of several inputs in the shares of rows that their weights say.

Real counterpart: ``_internal/execution/operators/mix_operator.py`` (ray 2.60).

Not modelled: an input that ends without a last block is noticed with the next block of another.
"""

from __future__ import annotations

from collections import deque

from raysim.raycore.scripts import Script, drop
from raysim.raylibs.data.blocks import Block, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.operators import Operator, Passing
from raysim.raylibs.data.specs import Union


class Mixing(Passing):
    """The next block is of the input that is furthest behind its share; it is waited for."""

    def __init__(
        self, stage: Union, name: str, inputs: list[Operator], context: DataContext
    ) -> None:  # fmt: skip
        super().__init__(name, inputs, context)
        self._weights = [weight / sum(stage.weights) for weight in stage.weights]
        self._to_shortest = stage.to_shortest
        self._rows = [0] * len(inputs)
        """Given on, of each input."""
        self._waiting: list[deque[Block]] = [deque() for _ in inputs]
        self._done = [False] * len(inputs)
        """Which have ended, as last looked: not with their last block, but after."""
        self._stopped = False

    def dispatch(self) -> Script:
        """As ``Operator``."""
        self._look()
        for op, waiting in zip(self.links.inputs, self._waiting, strict=True):
            if op.links.out:
                waiting.append(op.links.take())
                break
        yield from self._mix()

    def all_inputs_done(self) -> Script:
        """As ``Operator``."""
        self._look()
        yield from self._mix()
        yield from super().all_inputs_done()

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        return self._stopped or super().finished

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        held = [block for waiting in self._waiting for block in waiting]
        return len(held), total(held)[1]

    def _look(self) -> None:
        self._done = [op.finished and not op.links.out for op in self.links.inputs]

    def _exhausted(self, index: int) -> bool:
        return self._done[index] and not self._waiting[index]

    def _mix(self) -> Script:
        while not self._stopped:
            left = [i for i in range(len(self._waiting)) if not self._exhausted(i)]
            if not left or (self._to_shortest and len(left) < len(self._waiting)):
                yield from self._end()
                return
            whole = sum(self._rows)
            behind = max(
                left,
                key=lambda i: (self._weights[i] * whole - self._rows[i], self._weights[i], -i),
            )
            if not self._waiting[behind]:
                return
            block = self._waiting[behind].popleft()
            self._rows[behind] += block.rows
            self._count(block)
            self.links.give(block)

    def _end(self) -> Script:
        self._stopped = True
        unused = [b.ref for w in self._waiting for b in w if b.ref is not None and b.owned]
        yield drop(*unused)
