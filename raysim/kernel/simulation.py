"""One run: the clock, the seed, the recorder, the rooms, and what was digested of it all.

Nothing else in raysim is mutable for as long: a scenario builds a ``Simulation``, it runs, and its
records become a result.
"""

from __future__ import annotations

import gc
import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from simpy.events import Event

from raysim.kernel.clock import Clock, Handle
from raysim.kernel.invariants import EventLog, Invariants, label
from raysim.kernel.record import NullRecorder, Recorder
from raysim.kernel.rng import Streams
from raysim.kernel.transport import InstantTransport, Transport
from raysim.units import parse_seconds, to_ns

if TYPE_CHECKING:
    from raysim.kernel.component import Component

__all__ = ["Clock", "Handle", "Simulation"]

logger = logging.getLogger(__name__)
Room = TypeVar("Room", bound="Component")


class _Planned:
    """``fn(*args)`` as an entry of the clock, logged under the name of ``fn``."""

    def __init__(self, fn: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.__qualname__ = label(fn)
        self._fn = fn
        self._args = args

    def __call__(self, _: None) -> None:
        self._fn(*self._args)


class _Pause:
    """``fn()`` as an entry of the clock that is no event: it is not logged."""

    __slots__ = ("_fn", "_log")

    def __init__(self, fn: Callable[[], object], log: EventLog) -> None:
        self._fn = fn
        self._log = log

    def __call__(self, _: None) -> None:
        self._log.unsay()
        self._fn()


class Simulation:
    """Everything that exists during one run.

    Parameters
    ----------
    seed
        Of every random stream.
    recorder
        Listens to what happens; keeps nothing by default.
    check
        Run the invariants after every event; slow.
    log
        What happened, for comparing runs; one is made if none is given.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        recorder: Recorder | None = None,
        check: bool = False,
        log: EventLog | None = None,
    ) -> None:
        self.seed = seed
        self.recorder: Recorder = NullRecorder() if recorder is None else recorder
        self.log = EventLog() if log is None else log
        self.clock = Clock(log=self.log)
        self.components: dict[str, Component] = {}
        self.transport: Transport = InstantTransport(self.clock)
        self.rng = Streams(seed)
        self.invariants = Invariants()
        self.check = check
        self.call_at = self.clock.call_at
        self.call_later = self.clock.call_later
        self.cancel = self.clock.cancel
        if check:
            self.clock.after_event = self._check_after_event

    @property
    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        return self.clock.now

    @property
    def digest(self) -> str:
        """Hash of everything that happened: times, order, names, random draws.

        The same for the same seed and scenario, under any ``PYTHONHASHSEED``, with recording on
        or off, and however the run was divided into calls of ``run``.
        """
        parts = f"{self.log.events} {self.log.digest} {self.rng.digest}"
        return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()

    def add(self, component: Room) -> Room:
        """Give the component its address and start it.

        Raises
        ------
        ValueError
            The address is taken.
        """
        if component.address in self.components:
            raise ValueError(f"two components at address {component.address!r}")
        self.components[component.address] = component
        component.end = self.transport.end(component.address)
        component.start()
        return component

    def at(self, when: str | int, fn: Callable[..., object], *args: Any) -> Handle:
        """Call ``fn(*args)`` at ``when``: nanoseconds or text such as ``"3h"``, from the start."""
        return self.call_at(self._time_ns(when), _Planned(fn, args))

    def pause_at(self, when: str | int, fn: Callable[[], object]) -> Handle:
        """Call ``fn()`` at ``when``, where an ``at`` said here and now would happen.

        It is no event: a run that is looked at, saved or forked there has the digest of one that is
        not, and nobody who asks what is pending sees it.
        """
        return self.call_at(self._time_ns(when), _Pause(fn, self.log))

    def pending(self) -> Iterator[Any]:
        """What is still to happen, in no order: entries of the clock and SimPy's events."""
        return (x for x in self.clock.pending() if x.__class__ is not list or not _is_pause(x))

    def do(self, fn: Callable[..., object], *args: Any) -> None:
        """Call ``fn(*args)`` now, as an event: within a pause, what ``at`` would have done."""
        planned = _Planned(fn, args)
        self.clock.note(planned)
        planned(None)

    def run(self, until: str | int | Event | None = None) -> None:
        """Run until nothing is left to happen, a time is reached or an event has happened.

        Running to the present time or before does nothing.

        Raises
        ------
        InvariantViolation
            Checking is on, and something that must always hold did not.
        RuntimeError
            Nothing is left to happen, and the event ``until`` has not.
        """
        stop = until if until is None or isinstance(until, Event) else self._time_ns(until)
        if isinstance(stop, int) and stop <= self.now_ns:
            return
        with collector_at_ease():
            self.clock.run(stop)
        logger.debug("played to %d ns: %d events", self.now_ns, self.log.events)
        if self.check and stop is None:
            self.invariants.check(self.now_ns, self.log.events, None, ended=True)

    def _check_after_event(self) -> None:
        what = self.log.whats[-1] if self.log.whats else None
        self.invariants.check(self.now_ns, self.log.events, what)

    def _time_ns(self, when: str | int) -> int:
        return when if isinstance(when, int) else to_ns(parse_seconds(when))


def _is_pause(entry: Handle) -> bool:
    return entry[0].__class__ is _Pause


AT_EASE = (4_000_000, 20, 100)
"""Thresholds of the collector's three generations: it looks when there are so many new objects.

Half a gigabyte: so much garbage there may be, of what refers to itself."""
_left = 0
"""Objects that runs have left since the last look at everything."""
_stays = False


def what_exists_stays(*, look: bool = True) -> None:
    """Never look for garbage among what exists now, from here to the end of the process.

    For who has much and plays many runs: a look at all of it, as after every Ray program, takes
    half a second for each million of objects. ``look``: once more now.
    """
    global _stays  # noqa: PLW0603  (there is one collector)
    if look:
        gc.collect()
    gc.freeze()
    _stays = True


@contextmanager
def collector_at_ease() -> Iterator[None]:
    """Python's collector told to leave what exists alone and to look rarely; restored after.

    A run makes many small objects and few cycles, so looking often finds nothing, and a look at
    those that are new takes as long as making them. Neither are they looked at on the way out, but
    for a look at everything after runs that have left as many. Within itself it does nothing.
    """
    global _left  # noqa: PLW0603  (there is one collector for all runs of a process)
    thresholds = gc.get_threshold()
    if thresholds == AT_EASE:
        yield
        return
    if not _stays:
        gc.freeze()
    gc.set_threshold(*AT_EASE)
    try:
        yield
    finally:
        _left += gc.get_count()[0]
        if not _stays:
            gc.freeze()
            gc.unfreeze()  # all are old now
        gc.set_threshold(*thresholds)
        if _left > AT_EASE[0]:
            gc.collect()
            _left = 0
