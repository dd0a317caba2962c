"""Max-min shares over a table of numbers, compiled by numba; imported only when a network is busy.

The same steps as ``maxmin.fill``, ``ripple.ripple`` and ``Shares.solve``, with the same sums in the
same order, so that every rate and every nanosecond is equal to the bit (a test holds both equal).
Flows, classes of links and entries (one flow on one class) are rows; the flows of a class and the
classes of a flow are linked lists of entries in the order in which Python's dicts hold them.
"""

from __future__ import annotations

import math
from collections import namedtuple
from typing import Any

import numpy as np
from numba import njit

# Columns of flows, floats: what remains, rate, share, own limit.
REMAINING, RATE, SHARE, TOP = range(4)
# Columns of flows, integers: rate since, bottleneck, number, marks, first and last entry.
SINCE, STOP, INDEX, SEEN, FREE, HEAD, TAIL = range(7)
# Columns of classes, floats; integers: those without a share, all, then SEEN, HEAD, TAIL as above.
CAPACITY, LEFT, WEIGHT, TOTAL = range(4)
OPEN, COUNT = 0, 1
# Columns of entries, integers: flow, class, next of the class, the one before, next of the flow.
FLOW, CLASS, NEXT, BEFORE, ALSO = range(5)
# Counters: rows there are, rows of flows in use, first unused entry, stamp, mark, lists' lengths.
MAX_FLOWS, MAX_CLASSES, MAX_ENTRIES, HIGH, UNUSED, STAMP, MARK, FLOWS, CLASSES, HEAP = range(10)

BLOCK = 128
"""Flows whose earliest end is kept in one number."""
NEVER = 2**63 - 1
LATEST = 2**63 - 1024
"""Whoever is not through by then is taken to be through then, after 292 years."""
_FLOW = 2**61
_SLACK = 1e-9
_ROUNDING = 1 + 1e-12


Table = namedtuple("Table", "counts ff fi cf ci load ei due first flows classes level order row")
# load: of each entry. due: when each flow is through, NEVER where nobody is; first: the earliest of
# each block of flows, -1: not known. flows, classes: lists of rows at work, filled anew by each
# call. level, order, row: a heap of levels, what comes first at equal level, and rows.


@njit(cache=True)
def table(x: Any, i: Any) -> Table:
    """The arrays, out of one of floats and one of integers: two are soon handed over, 14 not."""
    f, c, e = i[MAX_FLOWS], i[MAX_CLASSES], i[MAX_ENTRIES]
    x1, i1 = f * 4, 10 + f * 7
    x2, i2 = x1 + c * 4, i1 + c * 7
    x3, i3 = x2 + e, i2 + e * 5
    i4 = i3 + f
    i5 = i4 + f // BLOCK
    i6 = i5 + f
    i7 = i6 + c
    i8 = i7 + f + c
    return Table(
        i[:10], x[:x1].reshape((f, 4)), i[10:i1].reshape((f, 7)),
        x[x1:x2].reshape((c, 4)), i[i1:i2].reshape((c, 7)), x[x2:x3], i[i2:i3].reshape((e, 5)),
        i[i3:i4], i[i4:i5], i[i5:i6], i[i6:i7], x[x3:], i[i7:i8], i[i8:],
    )  # fmt: skip


@njit(cache=True)
def set_due(t: Table, f: int, ns: int) -> None:
    """Note when a flow is through."""
    b = f // BLOCK
    before = t.due[f]
    t.due[f] = ns
    if ns <= t.first[b]:
        t.first[b] = ns
    elif before == t.first[b]:
        t.first[b] = -1


@njit(cache=True)
def first_due(x: Any, i: Any) -> int:
    """When the next flow is through."""
    return _first(table(x, i))


@njit(cache=True)
def _first(t: Table) -> int:
    first = NEVER
    for b in range((t.counts[HIGH] + BLOCK - 1) // BLOCK):
        if t.first[b] < 0:
            t.first[b] = t.due[b * BLOCK : (b + 1) * BLOCK].min()
        if t.first[b] < first:
            first = t.first[b]
    return first


@njit(cache=True)
def due_until(x: Any, i: Any, limit_ns: int) -> int:
    """How many flows are through by then; they are in ``flows``."""
    t = table(x, i)
    count = 0
    for b in range((t.counts[HIGH] + BLOCK - 1) // BLOCK):
        if t.first[b] <= limit_ns:
            for f in range(b * BLOCK, (b + 1) * BLOCK):
                if t.due[f] <= limit_ns:
                    t.flows[count] = f
                    count += 1
    return count


@njit(cache=True)
def add_entry(t: Table, f: int, c: int, load: float) -> None:
    """Put a flow on a class of links, behind all others."""
    e = t.counts[UNUSED]
    t.counts[UNUSED] = t.ei[e, NEXT]
    t.load[e] = load
    t.ei[e, FLOW], t.ei[e, CLASS] = f, c
    t.ei[e, NEXT] = t.ei[e, ALSO] = -1
    t.ei[e, BEFORE] = last = t.ci[c, TAIL]
    if last < 0:
        t.ci[c, HEAD] = e
    else:
        t.ei[last, NEXT] = e
    t.ci[c, TAIL] = e
    t.ci[c, COUNT] += 1
    last = t.fi[f, TAIL]
    if last < 0:
        t.fi[f, HEAD] = e
    else:
        t.ei[last, ALSO] = e
    t.fi[f, TAIL] = e


@njit(cache=True)
def enter(
    x: Any, i: Any, f: int, index: int, count: int, left: float, top: float, ns: int, alone: bool
) -> None:
    """A flow comes onto so many ``classes``, its loads in ``level``; ``alone``: it has its rate."""
    t = table(x, i)
    t.ff[f, REMAINING], t.ff[f, TOP] = left, top
    t.ff[f, RATE] = t.ff[f, SHARE] = 0.0
    t.fi[f, SINCE], t.fi[f, INDEX] = ns, index
    t.fi[f, STOP] = t.fi[f, HEAD] = t.fi[f, TAIL] = -1
    t.fi[f, SEEN] = t.fi[f, FREE] = 0
    if f >= t.counts[HIGH]:
        t.counts[HIGH] = f + 1
    for k in range(count):
        add_entry(t, f, t.classes[k], t.level[k])
    if alone:  # as maxmin.lone_rate
        for k in range(count):
            capacity, load = t.cf[t.classes[k], CAPACITY], t.level[k]
            if capacity < top * load:
                top = capacity / load
        t.ff[f, RATE] = top
        _schedule(t, f)


@njit(cache=True)
def leave(x: Any, i: Any, f: int) -> None:
    """A flow goes off its links."""
    t = table(x, i)
    set_due(t, f, NEVER)
    e = t.fi[f, HEAD]
    while e >= 0:
        c, before, after = t.ei[e, CLASS], t.ei[e, BEFORE], t.ei[e, NEXT]
        if before < 0:
            t.ci[c, HEAD] = after
        else:
            t.ei[before, NEXT] = after
        if after < 0:
            t.ci[c, TAIL] = before
        else:
            t.ei[after, BEFORE] = before
        t.ci[c, COUNT] -= 1
        t.ei[e, NEXT] = t.counts[UNUSED]
        t.counts[UNUSED] = e
        e = t.ei[e, ALSO]


@njit(cache=True)
def solve(x: Any, i: Any, count: int, now_ns: int, most: int) -> int:
    """Solve what so many ``classes`` reach, as ``Shares.solve``.

    When the next flow is through, or less than 0: so many flows, in ``flows``, are not on their
    links yet; ``classes`` then holds ``counts[CLASSES]`` to start from when they are off.
    """
    t = table(x, i)
    t.counts[CLASSES] = count
    _component(t, most)
    many = t.counts[FLOWS] > most
    if many:
        t.counts[CLASSES] = count
        t.counts[FLOWS] = 0
        t.counts[STAMP] += 1
        for k in range(count):
            _gather(t, t.classes[k])
    early = 0
    for k in range(t.counts[FLOWS]):
        if t.fi[t.flows[k], SINCE] > now_ns:
            t.flows[early] = t.flows[k]
            early += 1
    if early:
        return -early
    if many:
        _ripple(t)
    else:
        _fill(t)
    for k in range(t.counts[FLOWS]):
        f = t.flows[k]
        rate, share = t.ff[f, RATE], t.ff[f, SHARE]
        if share != rate and not abs(share - rate) <= 1e-12 * rate:
            late_ns = now_ns - t.fi[f, SINCE]
            if late_ns > 0:
                left = t.ff[f, REMAINING] - rate * late_ns * 1e-9
                t.ff[f, REMAINING] = left if left > 0.0 else 0.0
            t.fi[f, SINCE] = now_ns
            t.ff[f, RATE] = share
            _schedule(t, f)
    return _first(t)


@njit(cache=True)
def _schedule(t: Table, f: int) -> None:
    rate = t.ff[f, RATE]
    if rate > 0:
        wait_ns = np.ceil(t.ff[f, REMAINING] / rate * 1e9 - 1e-6)
        later = float(t.fi[f, SINCE]) + wait_ns > LATEST
        set_due(t, f, LATEST if later else t.fi[f, SINCE] + int(wait_ns))
    else:
        set_due(t, f, NEVER)


@njit(cache=True)
def _gather(t: Table, c: int) -> None:
    """List the flows of a class that were not seen with this stamp."""
    stamp, count = t.counts[STAMP], t.counts[FLOWS]
    e = t.ci[c, HEAD]
    while e >= 0:
        f = t.ei[e, FLOW]
        if t.fi[f, SEEN] != stamp:
            t.fi[f, SEEN] = stamp
            t.flows[count] = f
            count += 1
        e = t.ei[e, NEXT]
    t.counts[FLOWS] = count


@njit(cache=True)
def _touch(t: Table, i: int, least: int) -> None:
    """List the classes of ``flows[i]`` and all after it that were not seen with this stamp.

    Those of fewer than ``least`` flows are left out.
    """
    stamp, count = t.counts[STAMP], t.counts[CLASSES]
    while i < t.counts[FLOWS]:
        e = t.fi[t.flows[i], HEAD]
        while e >= 0:
            c = t.ei[e, CLASS]
            if t.ci[c, COUNT] >= least and t.ci[c, SEEN] != stamp:
                t.ci[c, SEEN] = stamp
                t.classes[count] = c
                count += 1
            e = t.ei[e, ALSO]
        i += 1
    t.counts[CLASSES] = count


@njit(cache=True)
def _component(t: Table, most: int) -> None:
    """As ``maxmin.component``, but for classes with one flow: they lead to nobody else."""
    t.counts[STAMP] += 1
    for k in range(t.counts[CLASSES]):
        t.ci[t.classes[k], SEEN] = t.counts[STAMP]
    t.counts[FLOWS] = i = 0
    while i < t.counts[CLASSES] and t.counts[FLOWS] <= most:
        before = t.counts[FLOWS]
        _gather(t, t.classes[i])
        _touch(t, before, 2)
        i += 1


@njit(cache=True)
def _push(t: Table, level: float, order: int, row: int) -> None:
    i, t.counts[HEAP] = t.counts[HEAP], t.counts[HEAP] + 1
    while i > 0:
        up = (i - 1) >> 1
        if t.level[up] < level or (t.level[up] == level and t.order[up] < order):
            break
        t.level[i], t.order[i], t.row[i] = t.level[up], t.order[up], t.row[up]
        i = up
    t.level[i], t.order[i], t.row[i] = level, order, row


@njit(cache=True)
def _pop(t: Table) -> tuple[float, int, int]:
    found = t.level[0], t.order[0], t.row[0]
    t.counts[HEAP] = n = t.counts[HEAP] - 1
    level, order, row = t.level[n], t.order[n], t.row[n]
    i, child = 0, 1
    while child < n:
        other = child + 1
        if other < n and (
            t.level[other] < t.level[child]
            or (t.level[other] == t.level[child] and t.order[other] < t.order[child])
        ):
            child = other
        if level < t.level[child] or (level == t.level[child] and order < t.order[child]):
            break
        t.level[i], t.order[i], t.row[i] = t.level[child], t.order[child], t.row[child]
        i, child = child, 2 * child + 1
    t.level[i], t.order[i], t.row[i] = level, order, row
    return found


@njit(cache=True)
def _stop(t: Table, f: int, level: float, at: int) -> None:
    """A flow has its share; its links have that much less left."""
    t.ff[f, SHARE] = level
    t.fi[f, STOP] = at
    e = t.fi[f, HEAD]
    while e >= 0:
        c = t.ei[e, CLASS]
        t.ci[c, OPEN] -= 1
        t.cf[c, LEFT] -= level * t.load[e]
        t.cf[c, WEIGHT] -= t.load[e]
        e = t.ei[e, ALSO]


@njit(cache=True)
def _add_again(t: Table, c: int, mark: int) -> None:
    """Cancellation: sum again what is still open."""
    total = 0.0
    e = t.ci[c, HEAD]
    while e >= 0:
        f = t.ei[e, FLOW]
        if t.ff[f, SHARE] < 0 and (not mark or t.fi[f, FREE] == mark):
            total += t.load[e]
        e = t.ei[e, NEXT]
    t.cf[c, WEIGHT] = t.cf[c, TOTAL] = total


@njit(cache=True)
def _rise(t: Table, mark: int) -> None:
    """Stop flows level by level; those marked ``mark`` only, or all if it is 0."""
    left = t.counts[FLOWS]
    while left and t.counts[HEAP]:
        level, order, row = _pop(t)
        if order >= _FLOW:
            if t.ff[row, SHARE] < 0:
                _stop(t, row, level, -1)
                left -= 1
            continue
        if not t.ci[row, OPEN]:
            continue
        if t.cf[row, WEIGHT] < 1e-6 * t.cf[row, TOTAL]:
            _add_again(t, row, mark)
        full_at = t.cf[row, LEFT] / t.cf[row, WEIGHT] if t.cf[row, LEFT] > 0.0 else 0.0
        if full_at > level * _ROUNDING:
            _push(t, full_at, order, row)
            continue
        e = t.ci[row, HEAD]
        while e >= 0:
            f = t.ei[e, FLOW]
            if t.ff[f, SHARE] < 0 and (not mark or t.fi[f, FREE] == mark):
                _stop(t, f, level, row)
                left -= 1
            e = t.ei[e, NEXT]
    for i in range(t.counts[FLOWS]):
        f = t.flows[i]
        if t.ff[f, SHARE] < 0:
            t.ff[f, SHARE] = math.inf
            t.fi[f, STOP] = -1


@njit(cache=True)
def _fill(t: Table) -> None:
    """As ``maxmin.fill``."""
    t.counts[HEAP] = 0
    for i in range(t.counts[CLASSES]):
        c = t.classes[i]
        t.ci[c, OPEN] = t.ci[c, COUNT]
        if t.ci[c, COUNT] > 1 and t.cf[c, CAPACITY] < math.inf:
            weight = 0.0
            e = t.ci[c, HEAD]
            while e >= 0:
                weight += t.load[e]
                e = t.ei[e, NEXT]
            t.cf[c, LEFT] = t.cf[c, CAPACITY]
            t.cf[c, WEIGHT] = t.cf[c, TOTAL] = weight
            _push(t, t.cf[c, CAPACITY] / weight, c, c)
    for i in range(t.counts[FLOWS]):
        f = t.flows[i]
        t.ff[f, SHARE] = -1.0
        limit = t.ff[f, TOP]
        e = t.fi[f, HEAD]
        while e >= 0:
            c = t.ei[e, CLASS]
            if t.ci[c, COUNT] == 1 and t.cf[c, CAPACITY] < limit * t.load[e]:
                limit = t.cf[c, CAPACITY] / t.load[e]
            e = t.ei[e, ALSO]
        if limit < math.inf:
            _push(t, limit, _FLOW + t.fi[f, INDEX], f)
    _rise(t, 0)


@njit(cache=True)
def _ripple(t: Table) -> None:
    """As ``ripple.ripple``, from the flows in the list, which grows."""
    t.counts[MARK] += 1
    mark = t.counts[MARK]
    for i in range(t.counts[FLOWS]):
        t.fi[t.flows[i], FREE] = mark
    t.counts[STAMP] += 1
    t.counts[CLASSES] = before = 0
    while before < t.counts[FLOWS]:
        _touch(t, before, 1)
        before = t.counts[FLOWS]
        _fill_beside(t, mark)
        for i in range(t.counts[CLASSES]):
            _free_more(t, t.classes[i], mark)
        for i in range(before, t.counts[FLOWS]):
            t.fi[t.flows[i], FREE] = mark


@njit(cache=True)
def _fill_beside(t: Table, mark: int) -> None:
    """Fill up what the flows that are not free leave of the links, as ``ripple``."""
    t.counts[HEAP] = 0
    for i in range(t.counts[CLASSES]):
        c = t.classes[i]
        taken = weight = 0.0
        count = 0
        e = t.ci[c, HEAD]
        while e >= 0:
            f = t.ei[e, FLOW]
            if t.fi[f, FREE] == mark:
                weight += t.load[e]
                count += 1
            else:
                taken += t.ff[f, RATE] * t.load[e]
            e = t.ei[e, NEXT]
        t.cf[c, LEFT] = left = t.cf[c, CAPACITY] - taken
        t.cf[c, WEIGHT] = t.cf[c, TOTAL] = weight
        t.ci[c, OPEN] = count
        if left < math.inf:
            _push(t, (left if left > 0.0 else 0.0) / weight, c, c)
    for i in range(t.counts[FLOWS]):
        f = t.flows[i]
        t.ff[f, SHARE] = -1.0
        t.fi[f, STOP] = -1
        if t.ff[f, TOP] < math.inf:
            _push(t, t.ff[f, TOP], _FLOW + t.fi[f, INDEX], f)
    _rise(t, mark)


@njit(cache=True)
def _free_more(t: Table, c: int, mark: int) -> None:
    """List the flows of a class that kept their rates and must not, as ``ripple``."""
    fastest, stopped_at = -math.inf, -math.inf
    kept = False
    e = t.ci[c, HEAD]
    while e >= 0:
        f = t.ei[e, FLOW]
        free = t.fi[f, FREE] == mark
        kept = kept or not free
        rate = t.ff[f, SHARE] if free else t.ff[f, RATE]
        if rate > fastest:
            fastest = rate
        if free and t.fi[f, STOP] == c and rate > stopped_at:
            stopped_at = rate
        e = t.ei[e, NEXT]
    if not kept:
        return
    if stopped_at == -math.inf:
        stopped_at = math.inf
    full = t.cf[c, LEFT] <= t.cf[c, CAPACITY] * _SLACK
    fastest *= 1 - _SLACK
    e = t.ci[c, HEAD]
    while e >= 0:
        f = t.ei[e, FLOW]
        if t.fi[f, FREE] != mark and t.fi[f, FREE] != -mark:
            rate = t.ff[f, RATE]
            lost = t.fi[f, STOP] == c and (not full or rate < fastest)
            if lost or rate > stopped_at * (1 + _SLACK):
                t.fi[f, FREE] = -mark
                t.flows[t.counts[FLOWS]] = f
                t.counts[FLOWS] += 1
        e = t.ei[e, NEXT]
