"""What of a map operator's tasks goes out, and when.

Real counterpart: ``_OutputQueue`` of ``operators/map_operator.py`` (ordered under
``preserve_order``, else as tasks make blocks) and ``SortSamplingOp`` of
``operators/shuffle_operators/sort_sampling_operator.py``, which gives its input on, unchanged, when
samples of all of it are in.
"""

from __future__ import annotations

from typing import Any, Protocol

from raysim.raycore.tasks import Ref
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.operators import Links


class Outlet(Protocol):
    """Of one operator; tasks are told apart by their numbers."""

    found: list[Any]
    """What tasks have sampled."""

    def took(self, task: int, block: Block) -> None:
        """A task has made a block."""

    def ended(self, task: int, inputs: list[Block]) -> list[Ref]:
        """It is over; references that are no longer needed."""

    def close(self) -> None:
        """All tasks are over, and no more will come."""


class AsMade:
    """Blocks go out as tasks make them; in order, those of a task wait for the tasks before it."""

    def __init__(self, links: Links, *, in_order: bool) -> None:
        self.found: list[Any] = []
        self._links = links
        self._in_order = in_order
        self._next = 0
        self._over: dict[int, None] = {}
        self._held: dict[int, list[Block]] = {}

    def took(self, task: int, block: Block) -> None:
        """As ``Outlet``."""
        if not self._in_order or task == self._next:
            self._links.give(block)
        else:
            self._held.setdefault(task, []).append(block)
            self._links.out_bytes += block.size_bytes

    def ended(self, task: int, inputs: list[Block]) -> list[Ref]:
        """As ``Outlet``."""
        self._over[task] = None
        while self._in_order and self._next in self._over:
            del self._over[self._next]
            self._next += 1
            self._links.out.extend(self._held.pop(self._next, ()))
        return [b.ref for b in inputs if b.ref is not None and b.owned]

    def close(self) -> None:
        """As ``Outlet``."""


class Samples:
    """Keeps what tasks have found, and gives their inputs on when all is known."""

    def __init__(self, links: Links) -> None:
        self.found: list[Any] = []
        self._links = links
        self._made: dict[int, list[Block]] = {}
        self._inputs: dict[int, list[Block]] = {}

    def took(self, task: int, block: Block) -> None:
        """As ``Outlet``."""
        self._made.setdefault(task, []).append(block)

    def ended(self, task: int, inputs: list[Block]) -> list[Ref]:
        """As ``Outlet``."""
        self._inputs[task] = inputs
        return [b.ref for b in self._made.get(task, ()) if b.ref is not None]

    def close(self) -> None:
        """As ``Outlet``."""
        for task in sorted(self._inputs):
            self.found += [p.content for b in self._made.get(task, ()) for p in b.pieces]
            for block in self._inputs[task]:
                self._links.give(block)
        self._made.clear()
        self._inputs.clear()
