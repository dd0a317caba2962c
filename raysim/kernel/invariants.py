"""Always-true checks run after events, and the log by which two runs are compared.

Real counterpart: Ray's ``RAY_CHECK`` and, for the log, deterministic simulation testing as
databases do it: the same seed must give the same run, and when it does not, the first event that
differs says why.

Not modelled: anything of the cluster; checkers are given by the packages that own the state.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from struct import pack
from typing import Any

from raysim.errors import InvariantViolation

_qualname = attrgetter("__qualname__")

Checker = Callable[[], object]
"""Returns a falsy value when all is well, or what is wrong; may also raise ``AssertionError``."""


class Invariants:
    """Named checkers over the state of a simulation."""

    def __init__(self) -> None:
        self._always: dict[str, Checker] = {}
        self._at_end: dict[str, Checker] = {}

    def register(self, name: str, fn: Checker, *, at_end: bool = False) -> None:
        """Have ``fn`` checked after every event, or only when nothing is left to happen.

        Raises
        ------
        ValueError
            The name is taken.
        """
        if name in self._always or name in self._at_end:
            raise ValueError(f"an invariant named {name!r} is registered already")
        (self._at_end if at_end else self._always)[name] = fn

    def check(self, t_ns: int, events: int, what: object, *, ended: bool = False) -> None:
        """Run the checkers; ``events``, ``t_ns`` and ``what`` say where in the run we are.

        Raises
        ------
        InvariantViolation
            A checker found something wrong.
        """
        for name, fn in (self._at_end if ended else self._always).items():
            try:
                wrong = fn()
            except AssertionError as e:
                wrong = str(e) or "assertion failed"
            if wrong:
                when = "at the end" if ended else f"after event {events} ({label(what)})"
                raise InvariantViolation(f"{name}: {wrong}; {when}, t = {t_ns} ns")


def label(what: object) -> str:
    """A name for a function or event that is the same in every process: no hashes, no ids."""
    name = getattr(what, "__qualname__", None)
    if name is None:
        wrapped = getattr(what, "func", None)  # functools.partial
        return label(type(what) if wrapped is None else wrapped)
    owner = getattr(what, "__self__", None)
    if owner is None or isinstance(owner, type):
        return str(name)
    who = getattr(owner, "address", None)
    if who.__class__ is str and who:  # a room's method, most of the time
        return f"{name} {who}"
    who = getattr(owner, "address", None) or getattr(owner, "name", None)
    if isinstance(who, tuple):
        who = "/".join(str(p) for p in who if isinstance(p, (str, int)))
    return f"{name} {who}" if isinstance(who, (str, int)) else str(name)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The digest of all events up to one of them."""

    events: int
    t_ns: int
    digest: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two runs."""

    event: int
    """Index of the first event that differs, or that of the window it lies in."""
    events_in_window: int
    """1 when the event itself is known."""
    left_t_ns: int | None
    right_t_ns: int | None
    left: str | None = None
    right: str | None = None

    def __str__(self) -> str:
        """One sentence for a person."""
        if self.events_in_window > 1:
            return (
                f"runs differ within events {self.event}..{self.event + self.events_in_window - 1}"
                f" (up to t = {self.left_t_ns} ns and {self.right_t_ns} ns)"
            )
        left = "ended" if self.left is None else f"{self.left} at t = {self.left_t_ns} ns"
        right = "ended" if self.right is None else f"{self.right} at t = {self.right_t_ns} ns"
        return f"runs differ first at event {self.event}: {left} against {right}"


class EventLog:
    """What happened, as (time, name) folded into one hash and a checkpoint every so many events.

    The clock appends to ``times`` and ``whats``; ``fold`` reduces full blocks of them. Blocks are
    always of ``every`` events, so how a run was sliced does not show in the digest.
    Without ``hashing`` nothing is kept at all.
    """

    def __init__(
        self, *, every: int = 4096, keep: range | None = None, hashing: bool = True
    ) -> None:
        self.every = every
        self.keep = keep or range(0)
        self.kept: list[tuple[int, int, str]] = []
        """(index, time, label) of the events whose index is in ``keep``."""
        self.checkpoints: list[Checkpoint] = []
        self.times: Any = [] if hashing else deque(maxlen=0)
        self.whats: Any = [] if hashing else deque(maxlen=1)
        """What happened, a function or a type; a room that runs ahead of the clock puts its own
        handler in the place of the entry that brought it a message."""
        self._folded = 0
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def events(self) -> int:
        """Events logged so far."""
        return self._folded + len(self.times)

    @property
    def digest(self) -> str:
        """Hash of all events so far."""
        hash_ = self._hash.copy()
        hash_.update(self._block(len(self.times)))
        return hash_.hexdigest()

    def unsay(self) -> None:
        """The event under way, entered last, is none: whoever only looks leaves no trace."""
        if self.times:
            self.times.pop()
            self.whats.pop()

    def fold(self) -> None:
        """Reduce full blocks; in place, since the clock holds the lists' ``append``."""
        every = self.every
        while len(self.times) >= every:
            self._hash.update(self._block(every))
            self._keep(every)
            self._folded += every
            digest = self._hash.hexdigest()
            self.checkpoints.append(Checkpoint(self._folded, self.times[every - 1], digest))
            del self.times[:every], self.whats[:every]

    def events_in(self, window: range) -> list[tuple[int, int, str]]:
        """Events of ``window`` that were kept, the unfolded tail included."""
        return [*self.kept, *self._tail(len(self.times), window)]

    def _keep(self, count: int) -> None:
        if self._folded < self.keep.stop and self._folded + count > self.keep.start:
            self.kept += self._tail(count, self.keep)

    def _tail(self, count: int, window: range) -> list[tuple[int, int, str]]:
        first = self._folded
        return [
            (first + i, self.times[i], label(self.whats[i]))
            for i in range(count)
            if first + i in window
        ]

    def _block(self, count: int) -> bytes:
        """Times, then names, of the first ``count`` unfolded events."""
        whats = self.whats[:count]
        try:
            names = "\n".join(map(_qualname, whats))
        except AttributeError:  # a callable object without a name of its own
            names = "\n".join(map(label, whats))
        return pack(f"={count}q", *self.times[:count]) + names.encode()


def compare(left: EventLog, right: EventLog) -> Divergence | None:
    """Where two logs first differ, to the nearest checkpoint; None if they are equal."""
    agreed = 0
    pairs = zip(left.checkpoints, right.checkpoints, strict=False)
    for a, b in pairs:
        if a != b:
            return Divergence(agreed, a.events - agreed, a.t_ns, b.t_ns)
        agreed = a.events
    if left.events == right.events and left.digest == right.digest:
        return None
    last_ns = [
        log.times[-1] if log.times else log.checkpoints[-1].t_ns if log.checkpoints else None
        for log in (left, right)
    ]
    return Divergence(agreed, max(left.events, right.events) - agreed, last_ns[0], last_ns[1])


def first_divergence(
    left: Callable[[EventLog], object], right: Callable[[EventLog], object], *, every: int = 4096
) -> Divergence | None:
    """Play two runs and find the first event in which they differ; None if they are equal.

    ``left`` and ``right`` each build a simulation with the log they are given and run it. When
    the runs differ, both are played once more, keeping the events around the difference.
    """
    coarse = EventLog(every=every), EventLog(every=every)
    left(coarse[0])
    right(coarse[1])
    found = compare(*coarse)
    if found is None:
        return None
    window = range(found.event, found.event + found.events_in_window)
    fine = EventLog(every=every, keep=window), EventLog(every=every, keep=window)
    left(fine[0])
    right(fine[1])
    a, b = fine[0].events_in(window), fine[1].events_in(window)
    for i in range(max(len(a), len(b))):
        x = a[i] if i < len(a) else None
        y = b[i] if i < len(b) else None
        if x != y:
            return Divergence(
                window[i], 1, x and x[1], y and y[1], x and x[2], y and y[2]
            )  # fmt: skip
    return found
