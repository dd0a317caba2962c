"""Rates of flows in arrays, solved by compiled code: for networks that are busy, if numba is there.

To the bit what ``Shares`` finds. It takes a third of a second to get ready; the first time on a
machine some ten seconds, while numba compiles what it then keeps in its cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from raysim.hardware import compiled as code
from raysim.hardware.maxmin import Flow, LinkClass
from raysim.hardware.shares import MANY, Shares


class TabledFlow(Flow):
    """A flow on its links, whose numbers that change are in a table."""

    __slots__ = ()

    @property
    def rate(self) -> float:  # type: ignore[override]
        """As of ``Flow``."""
        rate: float = self.table.floats[self.row, code.RATE]
        return rate

    @property
    def remaining(self) -> float:  # type: ignore[override]
        """As of ``Flow``."""
        left: float = self.table.floats[self.row, code.REMAINING]
        return left

    @property
    def since_ns(self) -> int:  # type: ignore[override]
        """As of ``Flow``."""
        since_ns: int = self.table.integers[self.row, code.SINCE]
        return since_ns


class FlowTable(Shares):
    """As ``Shares``, for the flows that are ``active`` and all that follow."""

    def __init__(self, active: Iterable[Flow]) -> None:
        super().__init__()
        self._classes: dict[int, LinkClass] = {}
        self._flows: dict[int, Flow] = {}
        self._unused: list[int] = []
        self._spare = 0
        """Entries without a flow."""
        self._first_ns = -1
        """When the next flow is through, if nothing has changed since that was found out."""
        self._use(*_room(8 * code.BLOCK, 1024, 8192), 0, 8192)
        for flow in active:
            rate, stop = flow.rate, flow.stop
            due_ns = code.NEVER if flow.due_with is None else min(flow.due_ns, code.LATEST)
            f = self._put(flow)
            self.floats[f, code.RATE] = rate
            self.integers[f, code.STOP] = -1 if stop is None else stop.index
            code.set_due(self._t, f, due_ns)

    def enter(self, flow: Flow, *, alone: bool) -> None:
        """As ``Shares.enter``."""
        self._put(flow, alone=alone)
        self._first_ns = -1

    def leave(self, flow: Flow, now_ns: int, *, whole: bool = False) -> None:
        """As ``Shares.leave``."""
        f = flow.row
        left = 0.0 if whole else flow.left(now_ns)
        flow.__class__ = Flow
        flow.table = None
        flow.remaining = left
        flow.rate = self.floats[f, code.RATE]
        flow.since_ns = self.integers[f, code.SINCE]
        code.leave(self._x, self._i, f)
        self._first_ns = -1
        del self._flows[f]
        self._unused.append(f)
        self._spare += len(flow.uses)

    def resize(self, link_class: LinkClass) -> None:
        """As ``Shares.resize``."""
        if link_class.index in self._classes:
            self._t.cf[link_class.index, code.CAPACITY] = link_class.capacity

    def split(self, owner: LinkClass, made: LinkClass) -> None:
        """Links of one class are told apart; its flows are on both parts."""
        self.resize(owner)
        if made.flows:
            self._room_for(made)
            for flow, load in made.flows.items():
                self._room_for_entries(1)
                code.add_entry(self._t, flow.row, made.index, load)

    def solve(
        self, seeds: Iterable[LinkClass], now_ns: int, put_off: Callable[[Flow], None]
    ) -> None:
        """As ``Shares.solve``."""
        count = 0
        for c in seeds:
            self._at_work[count] = c.index
            count += 1
        next_ns = code.solve(self._x, self._i, count, now_ns, MANY)
        while next_ns < 0:
            for flow in [self._flows[f] for f in self._t.flows[:-next_ns].tolist()]:
                put_off(flow)
            count = int(self._t.counts[code.CLASSES])
            next_ns = code.solve(self._x, self._i, count, now_ns, MANY)
        self._first_ns = next_ns

    def first_ns(self) -> int:
        """As ``Shares.first_ns``."""
        if self._first_ns < 0:
            self._first_ns = code.first_due(self._x, self._i)
        return -1 if self._first_ns == code.NEVER else self._first_ns

    def through(self, limit_ns: int) -> list[Flow]:
        """As ``Shares.through``; they are off the books when they ``leave``."""
        count = code.due_until(self._x, self._i, limit_ns)
        rows = self._t.flows[:count].tolist()
        if count > 1:
            rows.sort(key=lambda f: (self._t.due[f], self._flows[f].index))
        return [self._flows[f] for f in rows]

    # ---- rows ------------------------------------------------------------------------------------

    def _put(self, flow: Flow, *, alone: bool = False) -> int:
        """Give a flow a row, and its links an entry each."""
        for c, _ in flow.uses:
            if c.index not in self._classes:
                self._room_for(c)
        self._room_for_entries(len(flow.uses))
        if not self._unused:
            self._grow(flows=2)
        f = self._unused.pop()
        count = 0
        for c, load in flow.uses:
            self._at_work[count], self._loads[count] = c.index, load
            count += 1
        code.enter(
            self._x, self._i, f, flow.index, count, flow.remaining, flow.top, flow.since_ns, alone
        )
        self._flows[f] = flow
        flow.row, flow.table = f, self
        flow.__class__ = TabledFlow
        return f

    def _room_for(self, c: LinkClass) -> None:
        """Give a class its row."""
        while c.index >= self._t.counts[code.MAX_CLASSES]:
            self._grow(classes=2)
        self._classes[c.index] = c
        self._t.cf[c.index, code.CAPACITY] = c.capacity

    def _room_for_entries(self, count: int) -> None:
        while self._spare < count:
            self._grow(entries=2)
        self._spare -= count

    def _grow(self, flows: int = 1, classes: int = 1, entries: int = 1) -> None:
        """Have so many times as many rows."""
        old = self._t
        f, c, e = old.counts[: code.HIGH].tolist()
        x, i = _room(f * flows, c * classes, e * entries)
        made = code.table.py_func(x, i)
        for name in ("ff", "fi", "cf", "ci", "load", "ei", "due", "first"):
            array = getattr(old, name)
            getattr(made, name)[: len(array)] = array
        made.counts[code.HIGH :] = old.counts[code.HIGH :]
        if entries > 1:
            made.ei[-1, code.NEXT] = made.counts[code.UNUSED]
            made.counts[code.UNUSED] = e
        self._use(x, i, f, e * entries - e)

    def _use(self, x: Any, i: Any, flows: int, spare: int) -> None:
        """Go on with these arrays, of which so many rows of flows are known."""
        self._x, self._i = x, i
        self._t: code.Table = code.table.py_func(x, i)
        self._spare += spare
        self._unused += range(len(self._t.fi) - 1, flows - 1, -1)
        self.floats: Any = memoryview(self._t.ff)
        self.integers: Any = memoryview(self._t.fi)
        self._at_work = memoryview(self._t.classes)
        self._loads: Any = memoryview(self._t.level)


def _room(flows: int, classes: int, entries: int) -> tuple[Any, Any]:
    """Room for a table of so many rows; the first is not taken care of by anybody yet."""
    x = np.zeros(5 * flows + 5 * classes + entries)
    i = np.zeros(10 + 11 * flows + flows // code.BLOCK + 10 * classes + 5 * entries, np.int64)
    i[: code.UNUSED] = flows, classes, entries, 0
    t = code.table.py_func(x, i)
    t.due[:] = t.first[:] = code.NEVER
    t.ci[:, code.HEAD] = t.ci[:, code.TAIL] = -1
    t.ei[:, code.NEXT] = range(1, entries + 1)
    t.ei[entries - 1, code.NEXT] = -1
    return x, i
