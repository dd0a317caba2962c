"""Virtual time: SimPy's environment on whole nanoseconds, with plain function calls as entries.

Real counterpart: none; this is the stage everything else plays on. The whole SimPy API
(``process``, ``timeout``, ``event``, ``run``, ``step``, ``peek``, resources) keeps working, in
SimPy's own order, for scripts and tests. Rooms and hardware use ``call_at`` and ``call_later``
instead, which cost one list per entry and no generator.

Order at equal time is (time, priority, sequence), as in SimPy: interrupts and process starts
(``URGENT``) before everything else, then entries as they were scheduled. It is never random.

How: a heap of distinct times (comparing ints is several times cheaper than comparing SimPy's
tuples) and a dict from time to what happens then: one entry, or a deque of them. What is scheduled
for the current instant never touches the heap. Entries with another priority than ``NORMAL`` are
rare and live in a small heap of their own. When thousands are pending, those beyond a horizon wait
unsorted in slots of equal width; a slot is sorted into ``run`` when time gets there, and the heap
keeps only what is scheduled into the open slot (a calendar queue: Brown, CACM 31(10), 1988).

Fractions of a nanosecond: a delay or time that is a float is rounded *up*, as ``units.to_ns`` does
and with its tolerance of a millionth of a nanosecond for floating-point noise. Infinite and NaN
delays are refused.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, repeat
from operator import index, itemgetter
from typing import Any

from simpy.core import BoundClass, EmptySchedule, Environment, Infinity, StopSimulation
from simpy.events import NORMAL, URGENT, AllOf, AnyOf, Event, EventPriority, Process, Timeout

from raysim.kernel.invariants import EventLog

Handle = list[Any]
"""An entry ``[fn, arg]``: what ``call_at`` returns and ``cancel`` takes."""

_NEVER = 1 << 100
_CROWD = 1024  # a heap of fewer is faster than slots
_SLOT = 256  # entries a slot should take; half or twice as many cost nearly the same
_BLOCK = 4096  # how often the loop looks after the log and the slots
_time_of = itemgetter(0)
_RESUMED = EventPriority(-1)  # SimPy's own: callbacks left over when ``run`` stopped at an event


def whole_ns(value: Any) -> int:
    """``value`` as whole nanoseconds: integers exactly, floats rounded up.

    Raises
    ------
    ValueError
        The value is infinite or not a number.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a time on the clock must be finite, got {value}")
        return math.ceil(value - 1e-6)
    return index(value)


class _Until(Event):
    """Where ``run(until=<time>)`` stops; nothing that happened, so it is not logged."""


class Clock(Environment):
    """A ``simpy.Environment`` on an integer-nanosecond clock with cancellable function calls."""

    def __init__(self, initial_time_ns: int = 0, *, log: EventLog | None = None) -> None:
        super().__init__(initial_time_ns)
        del self._now  # SimPy's own, behind its property
        self.now = initial_time_ns
        self._times: list[int] = []
        self._at: dict[int, Any] = {}
        self._soon: deque[Any] = deque()
        self._ranked: list[tuple[int, int, Event]] = []
        self._ranked_at: dict[int, list[tuple[int, int, Event]]] = {}
        self._horizon = _NEVER
        self._far: dict[int, list[tuple[int, Any]]] = {}
        self._slots: list[int] = []
        self._run: list[tuple[int, Any]] = []
        self._shift = 0
        self._slots_opened = 0
        self._crowd = _CROWD
        self._cancelled = 0
        self._cancelled_limit = _CROWD
        self.log = EventLog(hashing=False) if log is None else log
        self.after_event: Callable[[], None] | None = None
        """Called after every event when set (by invariant checking)."""

    now: int = 0
    """Nanoseconds since the start. A plain attribute, since every message reads it several times;
    only the clock sets it."""

    # SimPy binds these only for classes that list them themselves.
    process = BoundClass(Process)
    timeout = BoundClass(Timeout)
    event = BoundClass(Event)
    all_of = BoundClass(AllOf)
    any_of = BoundClass(AnyOf)

    def call_at(self, t_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Handle:
        """Call ``fn(arg)`` at ``t_ns``; the handle returned can be cancelled.

        Raises
        ------
        ValueError
            ``t_ns`` has passed.
        """
        if t_ns.__class__ is not int:
            t_ns = whole_ns(t_ns)
        return self.call_later(t_ns - self.now, fn, arg)

    def call_later(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Handle:
        """Call ``fn(arg)`` after ``delay_ns``; zero means later in this instant.

        Raises
        ------
        ValueError
            The delay is negative.
        """
        now_ns = self.now
        t_ns = now_ns + delay_ns
        if t_ns.__class__ is not int:
            t_ns = now_ns + whole_ns(delay_ns)
        entry = [fn, arg]
        if t_ns >= self._horizon:  # _put, inlined
            slot = t_ns >> self._shift
            entries = self._far.get(slot)
            if entries is None:
                self._far[slot] = [(t_ns, entry)]
                heappush(self._slots, slot)
            else:
                entries.append((t_ns, entry))
        elif t_ns > now_ns:
            there = self._at.setdefault(t_ns, entry)
            if there is entry:
                heappush(self._times, t_ns)
            elif there.__class__ is deque:
                there.append(entry)
            else:
                self._at[t_ns] = deque((there, entry))
        elif t_ns == now_ns:
            self._soon.append(entry)
        else:
            raise ValueError(f"{delay_ns} ns from now is in the past (now = {now_ns} ns)")
        return entry

    def cancel(self, handle: Handle) -> None:
        """Make sure ``handle`` is not called; harmless when it already was.

        A cancelled entry leaves no trace: time does not stop at it. Its place is reclaimed when
        as many were cancelled as are pending.
        """
        handle[0] = handle[1] = None
        self._cancelled += 1
        if self._cancelled > self._cancelled_limit:
            self._gather()
            self._cancelled = 0
            self._cancelled_limit = max(_CROWD, len(self._times))
            self._spread()

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: Any = 0) -> None:
        """Schedule a triggered SimPy event.

        Raises
        ------
        ValueError
            The delay is negative, infinite or not a number.
        """
        if delay.__class__ is int and delay > 0 and priority == NORMAL:
            self._put(self.now + delay, event)
        elif delay == 0:
            if priority == NORMAL:
                self._soon.append(event)
            else:
                heappush(self._ranked, (priority, next(self._eid), event))
        elif delay < 0:
            raise ValueError(f"Negative delay {delay}")
        elif delay.__class__ is not int:
            self.schedule(event, priority, whole_ns(delay))
        else:
            t_ns = self.now + delay
            ranked = self._ranked_at.setdefault(t_ns, [])
            heappush(ranked, (priority, next(self._eid), event))
            self._put(t_ns, deque())

    def peek(self) -> int | float:
        """Time of the next thing to happen, infinity if there is none."""
        soon = self._soon
        while soon and not _is_live(soon[0]):
            soon.popleft()
        if soon or self._ranked:
            return self.now
        while True:
            t_ns, there = self._take(keep=True)
            if there is None or t_ns in self._ranked_at or any(map(_is_live, _entries(there))):
                return t_ns  # type: ignore[no-any-return]
            self._take()

    def pending(self) -> Iterator[Any]:
        """Everything that is still to happen, entries and SimPy events, in no order."""
        later = (there for _, there in chain(self._run, chain.from_iterable(self._far.values())))
        for there in chain((self._soon,), self._at.values(), later):
            yield from filter(_is_live, _entries(there))
        for _, _, event in chain(self._ranked, chain.from_iterable(self._ranked_at.values())):
            yield event

    def step(self) -> None:
        """Let the next thing happen.

        Raises
        ------
        simpy.core.EmptySchedule
            Nothing is left to happen.
        """
        t_ns = self.peek()
        if t_ns is Infinity:
            raise EmptySchedule
        if t_ns > self.now:
            self._open(*self._take())
        ranked, soon = self._ranked, self._soon
        if ranked and (ranked[0][0] < NORMAL or not soon):
            self._happen(heappop(ranked)[2])
            return
        entry = soon.popleft()
        if entry.__class__ is list:
            fn, arg = entry
            self.note(fn)
            fn(arg)
        else:
            self._happen(entry)

    def run(self, until: float | Event | None = None) -> Any:
        """Let things happen until nothing is left, a time is reached or an event has happened.

        As SimPy's: at time ``until``, interrupts due then may still happen, nothing else does.

        Raises
        ------
        ValueError
            The time ``until`` is not in the future.
        RuntimeError
            Nothing is left to happen, and the event ``until`` has not.
        """
        if isinstance(until, Event):
            if until.processed:
                return until.value
            until.callbacks.append(StopSimulation.callback)
        elif until is not None:
            t_ns = whole_ns(until)
            if t_ns <= self.now:
                raise ValueError(f"until ({t_ns}) must be greater than the current simulation time")
            until = _Until(self)
            until._ok, until._value = True, None  # noqa: SLF001  (as SimPy does)
            self.schedule(until, URGENT, t_ns - self.now)
            until.callbacks.append(StopSimulation.callback)
        try:
            if self.after_event is None:
                self._loop()
            else:
                self._loop_checked(self.after_event)
        except StopSimulation as stop:
            return stop.args[0]
        except EmptySchedule:
            if until is not None:
                raise RuntimeError(
                    f'No scheduled events left but "until" event was not triggered: {until}'
                ) from None
        finally:
            self.log.fold()
        return None

    def note(self, what: object) -> None:
        """Enter ``what`` (a function) into the log of what happened, at the present time."""
        self.log.times.append(self.now)
        self.log.whats.append(what)

    def _loop_checked(self, after_event: Callable[[], None]) -> None:
        """Step and check, until an exception says why to stop."""
        while True:
            for _ in repeat(None, _BLOCK):
                self.step()
                after_event()
            self.log.fold()

    def _loop(self) -> None:  # noqa: C901, PLR0912  (the one hot loop)
        """``step()`` until an exception, inlined: every name here is a local for speed."""
        times, at_pop, soon, ranked = self._times, self._at.pop, self._soon, self._ranked
        run, run_pop, popleft, pop = self._run, self._run.pop, soon.popleft, heappop
        log_times, log_whats = self.log.times, self.log.whats
        while True:
            self._spread()
            for _ in repeat(None, _BLOCK):
                if ranked and (ranked[0][0] < 1 or not soon):  # 1 is NORMAL
                    self._happen(pop(ranked)[2])
                    continue
                if soon:
                    entry = popleft()
                    t_ns = self.now
                elif times and (not run or times[0] < run[-1][0]):
                    t_ns = pop(times)
                    entry = at_pop(t_ns)
                elif run:
                    t_ns, entry = run[-1]
                    if times and times[0] == t_ns:
                        t_ns, entry = self._take()
                    else:
                        run_pop()
                elif self._slots:
                    self._open_slot()
                    continue
                else:
                    raise EmptySchedule
                if entry.__class__ is list:
                    fn, arg = entry
                    if fn is None:
                        continue
                    self.now = t_ns
                    log_times.append(t_ns)
                    log_whats.append(fn)
                    fn(arg)
                elif entry.__class__ is deque:
                    self._open(t_ns, entry)
                else:  # _happen, inlined
                    self.now = t_ns
                    callbacks, entry.callbacks = entry.callbacks, None
                    log_times.append(t_ns)
                    log_whats.append(callbacks[0] if callbacks else entry.__class__)
                    try:
                        for callback in callbacks:
                            callback(entry)
                    except StopSimulation:
                        self._put_back(entry, callbacks[callbacks.index(callback) + 1 :])
                        raise
                    if not entry._ok and not hasattr(entry, "_defused"):  # noqa: SLF001
                        raise _failure_of(entry)
            self.log.fold()

    def _put(self, t_ns: int, entry: Any) -> None:
        """Have ``entry`` happen at ``t_ns``, which is in the future."""
        if t_ns >= self._horizon:
            slot = t_ns >> self._shift
            entries = self._far.get(slot)
            if entries is None:
                self._far[slot] = [(t_ns, entry)]
                heappush(self._slots, slot)
            else:
                entries.append((t_ns, entry))
        elif t_ns in self._at:
            self._at[t_ns] = _both(self._at[t_ns], entry)
        else:
            self._at[t_ns] = entry
            heappush(self._times, t_ns)

    def _take(self, *, keep: bool = False) -> tuple[Any, Any]:
        """The next time and what is due then, taken out unless ``keep``; infinity if nothing is."""
        times, run = self._times, self._run
        while not run and not times and self._slots:
            self._open_slot()
        if run and (not times or run[-1][0] <= times[0]):
            t_ns, entry = run[-1]
            if times and times[0] == t_ns:  # what was put into the open slot came later
                entry = _both(entry, self._at.pop(heappop(times)))
                run[-1] = t_ns, entry
            if not keep:
                run.pop()
            return t_ns, entry
        if not times:
            return Infinity, None
        if keep:
            return times[0], self._at[times[0]]
        t_ns = heappop(times)
        return t_ns, self._at.pop(t_ns)

    def _open_slot(self) -> None:
        """Sort the next slot into ``run``, latest first, and move the horizon behind it."""
        slot = heappop(self._slots)
        self._horizon = (slot + 1) << self._shift
        entries = self._far.pop(slot)
        self._slots_opened += 1
        entries.sort(key=_time_of)  # stable: first scheduled, first to happen
        run = self._run
        for t_ns, entry in entries:
            if run and run[-1][0] == t_ns:
                run[-1] = t_ns, _both(run[-1][1], entry)
            else:
                run.append((t_ns, entry))
        run.reverse()

    def _spread(self) -> None:
        """Choose the width of slots anew, if the heap grew or slots hold next to nothing.

        A slot takes some ``_SLOT`` entries at the density of what comes next, so that bursts far
        away do not matter before time gets there.
        """
        times = self._times
        scattered, self._slots_opened = self._slots_opened > _BLOCK // 8, 0
        if len(times) <= self._crowd and not scattered:
            return
        self._gather()
        if len(times) > _CROWD:
            times.sort()
            near = min(len(times) - 1, 4 * _SLOT)
            width_ns = max(1, (times[near] - times[0]) * _SLOT // near)
            self._shift = width_ns.bit_length() - 1
            self._horizon = ((times[0] >> self._shift) + 1) << self._shift
            first = bisect_left(times, self._horizon)
            for t_ns in times[first:]:
                self._put(t_ns, self._at.pop(t_ns))
            del times[first:]
        self._crowd = max(_CROWD, 2 * len(times))

    def _gather(self) -> None:
        """Put everything pending back on the heap, but for what was cancelled.

        In place, since ``_loop`` holds these containers. What is in ``run`` was scheduled before
        what is on the heap for the same time.
        """
        near = list(self._at.items())
        far = [self._far[slot] for slot in sorted(self._far)]
        at = self._at
        at.clear()
        for t_ns, there in chain(reversed(self._run), near, chain.from_iterable(far)):
            entry = deque(filter(_is_live, _entries(there)))
            if t_ns not in self._ranked_at:  # those need a deque, be it empty
                if not entry:
                    continue
                if len(entry) == 1:
                    entry = entry[0]
            at[t_ns] = _both(at[t_ns], entry) if t_ns in at else entry
        self._times[:] = at
        heapify(self._times)
        self._run.clear()
        self._far.clear()
        self._slots.clear()
        self._horizon = _NEVER

    def _open(self, t_ns: int, there: Any) -> None:
        """Go to ``t_ns``, where more than one thing may be due; stay if all were cancelled."""
        live = _entries(there)
        for entry in live:
            if entry.__class__ is list and entry[0] is None:
                live = [x for x in live if _is_live(x)]
                break
        ranked = self._ranked_at.pop(t_ns, None) if self._ranked_at else None
        if live or ranked:
            self.now = t_ns
            self._soon.extend(live)
            if ranked:
                self._ranked[:] = ranked

    def _happen(self, event: Event) -> None:
        """Process one SimPy event exactly as SimPy's ``step`` does."""
        callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
        if event.__class__ is not _Until:
            self.note(callbacks[0] if callbacks else event.__class__)
        try:
            for callback in callbacks:
                callback(event)
        except StopSimulation:
            self._put_back(event, callbacks[callbacks.index(callback) + 1 :])
            raise
        if not event._ok and not hasattr(event, "_defused"):  # noqa: SLF001
            raise _failure_of(event)

    def _put_back(self, event: Event, callbacks: list[Any]) -> None:
        """Have the callbacks that ``run`` stopped before called first when it goes on."""
        event.callbacks = callbacks
        self.schedule(event, _RESUMED)


def _failure_of(event: Event) -> BaseException:
    """A copy of the exception nobody handled, with a traceback of its own."""
    cause: BaseException = event._value  # noqa: SLF001
    copy = type(cause)(*cause.args)
    copy.__cause__ = cause
    return copy


def _is_live(entry: Any) -> bool:
    """Whether ``entry`` is a SimPy event or a call that was not cancelled."""
    return entry.__class__ is not list or entry[0] is not None


def _entries(there: Any) -> Any:
    """What is due at one time, as something to iterate over."""
    return there if there.__class__ is deque else (there,)


def _both(first: Any, then: Any) -> Any:
    """What is due at one time, when that is ``first`` and ``then``."""
    if first.__class__ is not deque:
        first = deque((first,))
    first.extend(_entries(then))
    return first
