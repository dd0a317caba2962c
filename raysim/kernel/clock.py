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
rare and live in a small heap of their own.

Fractions of a nanosecond: a delay or time that is a float is rounded *up*, as ``units.to_ns`` does
and with its tolerance of a millionth of a nanosecond for floating-point noise. Infinite and NaN
delays are refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import repeat
from operator import attrgetter, index
from typing import Any

from simpy.core import BoundClass, EmptySchedule, Environment, Infinity, StopSimulation
from simpy.events import NORMAL, URGENT, AllOf, AnyOf, Event, EventPriority, Process, Timeout

from raysim.kernel.invariants import EventLog

Handle = list[Any]
"""An entry ``[fn, arg]``: what ``call_at`` returns and ``cancel`` takes."""

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
        self._now: int = initial_time_ns
        self._times: list[int] = []
        self._at: dict[int, Any] = {}
        self._soon: deque[Any] = deque()
        self._ranked: list[tuple[int, int, Event]] = []
        self._ranked_at: dict[int, list[tuple[int, int, Event]]] = {}
        self._cancelled = 0
        self.log = EventLog(hashing=False) if log is None else log
        self.after_event: Callable[[], None] | None = None
        """Called after every event when set (by invariant checking)."""

    now = property(attrgetter("_now"), doc="Nanoseconds since the start, always an ``int``.")

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
        entry = [fn, arg]
        if t_ns > self._now:
            there = self._at.setdefault(t_ns, entry)
            if there is entry:
                heappush(self._times, t_ns)
            elif there.__class__ is deque:
                there.append(entry)
            else:
                self._at[t_ns] = deque((there, entry))
        elif t_ns == self._now:
            self._soon.append(entry)
        else:
            raise ValueError(f"cannot call at {t_ns} ns: it is {self._now} ns already")
        return entry

    def call_later(self, delay_ns: int, fn: Callable[[Any], object], arg: Any = None) -> Handle:
        """Call ``fn(arg)`` after ``delay_ns``; zero means later in this instant.

        Raises
        ------
        ValueError
            The delay is negative.
        """
        t_ns = self._now + delay_ns
        if t_ns.__class__ is not int:
            t_ns = self._now + whole_ns(delay_ns)
        entry = [fn, arg]
        if t_ns > self._now:
            there = self._at.setdefault(t_ns, entry)
            if there is entry:
                heappush(self._times, t_ns)
            elif there.__class__ is deque:
                there.append(entry)
            else:
                self._at[t_ns] = deque((there, entry))
        elif t_ns == self._now:
            self._soon.append(entry)
        else:
            raise ValueError(f"negative delay: {delay_ns} ns")
        return entry

    def cancel(self, handle: Handle) -> None:
        """Make sure ``handle`` is not called; harmless when it already was.

        A cancelled entry leaves no trace: time does not stop at it. Its place on the heap is
        reclaimed when most of the heap is such places.
        """
        handle[0] = handle[1] = None
        self._cancelled += 1
        if self._cancelled > 512 and 2 * self._cancelled > len(self._times):
            self._compact()

    def _compact(self) -> None:
        """Drop cancelled entries; in place, since ``_loop`` holds these containers."""
        self._cancelled = 0
        gone = [t for t, x in self._at.items() if x.__class__ is list and x[0] is None]
        for t in gone:
            del self._at[t]
        if gone:
            self._times[:] = self._at
            heapify(self._times)

    def schedule(self, event: Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """Schedule a triggered SimPy event.

        Raises
        ------
        ValueError
            The delay is negative, infinite or not a number.
        """
        if delay == 0:
            if priority == NORMAL:
                self._soon.append(event)
            else:
                heappush(self._ranked, (priority, next(self._eid), event))
            return
        t_ns = self._now + (delay if delay.__class__ is int else whole_ns(delay))
        if t_ns <= self._now:
            raise ValueError(f"negative delay: {delay} ns")
        if priority != NORMAL:
            ranked = self._ranked_at.setdefault(t_ns, [])
            heappush(ranked, (priority, next(self._eid), event))
        there = self._at.get(t_ns)
        if there is None:
            self._at[t_ns] = event if priority == NORMAL else deque()
            heappush(self._times, t_ns)
            return
        if there.__class__ is not deque:
            there = self._at[t_ns] = deque((there,))
        if priority == NORMAL:
            there.append(event)

    def peek(self) -> float:
        """Time of the next thing to happen, infinity if there is none."""
        soon = self._soon
        while soon and soon[0].__class__ is list and soon[0][0] is None:
            soon.popleft()
        if soon or self._ranked:
            return self._now
        times = self._times
        while times:
            there = self._at[times[0]]
            entries = there if there.__class__ is deque else (there,)
            if times[0] in self._ranked_at or any(map(_is_live, entries)):
                return times[0]
            del self._at[heappop(times)]
        return Infinity

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
        if t_ns > self._now:
            there = self._at.pop(heappop(self._times))
            self._open(int(t_ns), there if there.__class__ is deque else (there,))
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
            if t_ns <= self._now:
                raise ValueError(f"until ({t_ns}) must be greater than the current simulation time")
            until = _Until(self)
            until._ok, until._value = True, None  # noqa: SLF001  (as SimPy does)
            self.schedule(until, URGENT, t_ns - self._now)
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
        self.log.times.append(self._now)
        self.log.whats.append(what)

    def _loop_checked(self, after_event: Callable[[], None]) -> None:
        """Step and check, until an exception says why to stop."""
        while True:
            for _ in repeat(None, self.log.every):
                self.step()
                after_event()
            self.log.fold()

    def _loop(self) -> None:
        """``step()`` until an exception, inlined: every name here is a local for speed."""
        times, at_pop, soon, ranked = self._times, self._at.pop, self._soon, self._ranked
        popleft, pop = soon.popleft, heappop
        log_time, log_what = self.log.times.append, self.log.whats.append
        while True:
            for _ in repeat(None, self.log.every):
                if ranked and (ranked[0][0] < 1 or not soon):  # 1 is NORMAL
                    self._happen(pop(ranked)[2])
                    continue
                if soon:
                    entry = popleft()
                    t_ns = self._now
                else:
                    try:
                        t_ns = pop(times)
                    except IndexError:
                        raise EmptySchedule from None
                    entry = at_pop(t_ns)
                    if entry.__class__ is deque:
                        self._open(t_ns, entry)
                        continue
                if entry.__class__ is list:
                    fn, arg = entry
                    if fn is None:
                        continue
                    self._now = t_ns
                    log_time(t_ns)
                    log_what(fn)
                    fn(arg)
                else:
                    self._now = t_ns
                    self._happen(entry)
            self.log.fold()

    def _open(self, t_ns: int, entries: Any) -> None:
        """Go to ``t_ns``, where more than one thing may be due; stay if all were cancelled."""
        live = [x for x in entries if x.__class__ is not list or x[0] is not None]
        ranked = self._ranked_at.pop(t_ns, None)
        if live or ranked:
            self._now = t_ns
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
            event.callbacks = callbacks[callbacks.index(callback) + 1 :]
            self.schedule(event, _RESUMED)
            raise
        if not event._ok and not hasattr(event, "_defused"):  # noqa: SLF001
            exc = type(event._value)(*event._value.args)  # noqa: SLF001
            exc.__cause__ = event._value  # noqa: SLF001
            raise exc


def _is_live(entry: Any) -> bool:
    """Whether ``entry`` is a SimPy event or a call that was not cancelled."""
    return entry.__class__ is not list or entry[0] is not None
