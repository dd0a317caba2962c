"""Programs as fibers: a driver, a task, a thread of an actor or an event loop is one greenlet.

Real counterpart: a Python thread of a driver or worker process. A fiber runs until it needs an
answer from the cluster, then switches to the hub, which is whoever runs the simulation; the answer
resumes it. Only one fiber runs at a time, and never while a room does.

Greenlets are used again: one that has run a fiber to its end waits in its session for the next.

A fiber runs ahead of the clock: what its calls cost is added up in ``lead_ns`` and said with its
next call, or slept off (``settle``) when it is more than ``MAX_LEAD_NS``.

What is deleted in a program (``ObjectRef.__del__``) may be deleted at any moment, by the collector
even in the middle of a room's handler; so it is only noted then (``drops``), and acted upon at the
end of a slice or at the next call.
"""

from __future__ import annotations

import contextlib
import io
import operator
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent, greenlet

if TYPE_CHECKING:
    from raysim.rayapi.process_state import ProcessState
    from raysim.raycore.running import RunningTask

MAX_LEAD_NS = 10_000_000
"""A program that only submits still lets the clock follow this closely."""

_UNWOUND = 64
"""Frames of C that torch looks at for each error it raises (``c10::get_backtrace``): below a
greenlet's first frame lies another's stack, where the unwinder ends the process."""

STUBBORN = 1_000
"""Calls after which a program that catches its own end is left where it stands."""


class Hub:
    """Who runs, and what has been dropped meanwhile."""

    __slots__ = ("current", "drops", "open")

    def __init__(self) -> None:
        self.current: Fiber | None = None
        self.open = False
        """Programs run; what a program has left is dropped when nobody asks for it any more."""
        self.drops: deque[tuple[Any, Callable[..., Any], Any]] = deque()
        """(core worker, what to call, with what)."""

    def here(self) -> Fiber | None:
        """The fiber that calls; None also in a thread beside the one that runs programs."""
        fiber = self.current
        return fiber if fiber is not None and fiber.greenlet is getcurrent() else None

    def drop(self, core: Any, call: Callable[..., Any], number: Any) -> None:
        """Have ``call(number)`` made for a core worker soon: nothing waits where one is lost."""
        if self.open:
            self.drops.append((core, call, number))

    def drain(self, lead_ns: int = 0) -> None:
        """Act on what has been dropped, in processes that still live."""
        drops = self.drops
        while drops:
            core, fn, arg = drops.popleft()
            if getattr(core, "state", "up") == "up":
                fn(arg, lead_ns=lead_ns)


COROUTINE_TASK: ContextVar[Any] = ContextVar("coroutine_task", default=None)
"""The ``RunningTask`` of a coroutine: many share their event loop's fiber."""

HUB = Hub()
"""One: programs look it up from anywhere, as Ray's do their ``global_worker``."""


class Waiter:
    """What a fiber waits with: call it with the answer, once. Later calls do nothing."""

    __slots__ = ("fiber", "fired", "value")

    def __init__(self, fiber: Fiber) -> None:
        self.fiber: Fiber | None = fiber
        self.fired = False
        self.value: Any = None

    def __call__(self, value: Any = None) -> None:
        """The answer has come."""
        fiber = self.fiber
        if fiber is None:
            return
        self.fiber = None
        self.fired = True
        self.value = value
        if fiber.waiter is self:
            fiber.resume()


class Fiber:
    """One thread of one program.

    Parameters
    ----------
    process
        Whose thread it is; of a driver before ``ray.init``, one without a core worker.
    running
        The task it executes; None in a driver and in an event loop.
    main
        What it runs; None: ``body(fiber)``.
    done
        Called in the hub when ``main`` has returned; it catches its own exceptions.
    """

    __slots__ = (
        "__weakref__", "asleep", "body", "collected", "computed_ns", "depth", "done", "error",
        "greenlet", "interrupt", "interrupted", "kind", "lead_ns", "loop", "main", "name", "over",
        "process", "result", "running", "slice_began_ns", "slices", "spent_ns", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        process: ProcessState,
        running: RunningTask | None,
        main: Callable[[], Any] | None,
        done: Callable[[Fiber], object] | None = None,
        name: str = "",
    ) -> None:
        self.process = process
        self.running = running
        self.main = main
        self.body: Callable[[Fiber], Any] | None = None
        """What it runs instead of ``main``."""
        self.done = done
        self.lead_ns = 0
        self.loop: Any = None
        """The event loop it runs, if it does."""
        self.waiter: Waiter | None = None
        """What it waits with now."""
        self.collected = False
        self.interrupted: Fiber | None = None
        self.asleep = False
        self.interrupt: BaseException | None = None
        """To be raised when it wakes."""
        self.depth = 0
        """How many API functions it is in: the stopwatch runs at zero."""
        self.name = name
        """Of the function, for the table of what functions cost."""
        self.kind = ""
        """Its arguments there (``compute.kind_of``)."""
        self.slice_began_ns = 0
        self.slices = 0
        self.spent_ns = 0
        """By its own code, paid for or not."""
        self.computed_ns = 0
        """Measured and not yet paid for."""
        self.result: Any = None
        self.error: BaseException | None = None
        self.greenlet: Any = None
        """While it runs or waits."""
        self.over = False

    def run(self) -> None:
        """In its greenlet: everything it does."""
        main, self.main = self.main, None
        try:
            if main is not None:
                self.result = main()
            else:
                assert self.body is not None, "a fiber starts once"
                self.result = self.body(self)
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever a program raises)
            self.error = error
        finally:
            self.over = True
            if self.collected:
                HUB.current = self.interrupted

    @property
    def task(self) -> RunningTask | None:
        """The task whose code runs, also in a coroutine."""
        return self.running if self.loop is None else COROUTINE_TASK.get() or self.running

    # from the simulation

    def start(self) -> None:
        """Run its first slice, now if the hub runs."""
        if HUB.current is not None:
            self.process.session.sim.call_later(0, self._start_later)
        elif not self.process.gone:
            idle = self.process.session.greenlets
            new = not idle
            self.greenlet = greenlet(_deep, self.process.session.hub) if new else idle.pop()
            self.process.session.fibers[self] = None
            self._slice(self.greenlet.switch, [self] if new else self)

    def _start_later(self, _arg: Any) -> None:
        self.start()

    def resume(self) -> None:
        """Go on with the answer that has come."""
        if HUB.current is not None:
            self.process.session.sim.call_later(0, self._resume_later, self.waiter)
        elif not self.process.gone:
            self._slice(self.greenlet.switch)

    def _resume_later(self, waiter: Waiter) -> None:
        if self.waiter is waiter:
            self.resume()

    def throw(self, error: BaseException) -> bool:
        """Raise in it where it waits, or when its sleep is over; False if it does not wait."""
        waiter = self.waiter
        if waiter is not None and self.asleep:  # no signal wakes time.sleep in Ray
            self.interrupt = error
            return True
        if waiter is None or HUB.current is not None:
            return False
        waiter.fiber = None
        self._slice(self.greenlet.throw, error)
        return True

    def abandon(self) -> None:
        """Unwind what waits and will not go on: no collector sees what its frames hold."""
        waiter, waiting = self.waiter, self.greenlet
        if waiter is not None and waiting is not None:
            waiter.fiber = None
            waiting.throw(GreenletExit)
            self.greenlet = HUB.current = None  # also of one that does not end

    def cancel(self) -> None:
        """Of a task: ``ray.cancel``; a normal one is interrupted where it waits."""
        running = self.running
        assert running is not None, f"{self.name} is not a task"
        self.process.canceled[running.spec.task_id] = None
        if running.spec.kind == "NORMAL_TASK" and not self.throw(KeyboardInterrupt()):
            self.process.session.sim.call_later(0, self._interrupt)

    def _interrupt(self, _arg: Any) -> None:
        self.throw(KeyboardInterrupt())

    def _slice(self, switch: Callable[..., Any], *args: Any) -> None:
        HUB.current = self
        self.process.enter(self)
        try:
            switch(*args)
        finally:
            self.process.leave(self)
            HUB.current = None
        if self.over:
            self._give_back()
            if self.done is not None:
                self.done(self)  # before its references go: what it returns may hold them
        if HUB.drops:
            HUB.drain(self.lead_ns)

    def _give_back(self) -> None:
        """Its greenlet is for others."""
        used, self.greenlet = self.greenlet, None
        del self.process.session.fibers[self]
        if not used.dead:
            if used.gr_context is not None:
                used.gr_context = None  # what one program sets another does not see
            self.process.session.greenlets.append(used)

    # from the program

    def block(self, start: Callable[[Waiter], object]) -> Any:
        """Start something with a waiter, and wait until it is called; the answer."""
        if self.collected:
            self._stay_ended()
        waiter = Waiter(self)
        start(waiter)
        if not waiter.fired:
            self.waiter = waiter
            try:
                self.process.session.hub.switch()
            except GreenletExit:  # nobody will resume it
                self.collected, self.interrupted, HUB.current = True, HUB.current, self
                self.slices = 0
                raise
            finally:
                self.waiter = None
        return waiter.value

    def _stay_ended(self) -> None:
        """Of one that is being unwound: what it still calls ends it again, as the kernel would."""
        self.slices += 1
        while self.slices > STUBBORN:
            with contextlib.suppress(GreenletExit):  # not even the collector ends it
                self.process.session.hub.switch()
        raise GreenletExit

    def take_lead(self) -> int:
        """How far it is ahead; from now on it is not, since what follows waits for the clock."""
        if HUB.drops:
            HUB.drain(self.lead_ns)
        lead_ns, self.lead_ns = self.lead_ns, 0
        return lead_ns

    def pay(self, cost_ns: int) -> None:
        """A call's cost on this thread."""
        self.lead_ns += cost_ns
        if self.lead_ns > MAX_LEAD_NS:
            self.settle()

    def settle(self) -> None:
        """Wait until the clock has caught up."""
        lead_ns = self.take_lead()
        if lead_ns:
            self.sleep(lead_ns)

    def sleep(self, delay_ns: int) -> None:
        """Let time pass."""
        running = self.running
        if running is not None:
            self.asleep = True
            try:
                self.block(lambda then: running.sleep(delay_ns, then))
            finally:
                self.asleep = False
            if self.interrupt is not None:
                error, self.interrupt = self.interrupt, None
                raise error
        elif self.process.session.cluster is None:  # nobody else is there yet
            self.lead_ns += delay_ns
        else:
            self.block(lambda then: self.process.session.sim.call_later(delay_ns, then))


def let_go(fibers: list[Fiber]) -> None:
    """Unwind what nobody will resume; what it would still say, nobody hears."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for fiber in fibers:
            fiber.process.session.fibers.pop(fiber, None)
            fiber.abandon()


def _deep(first: list[Fiber]) -> None:
    """``_fibers`` on as many frames of C as anybody unwinds."""
    call: Any = operator.call
    call(*[call] * _UNWOUND, _fibers, first)


def _fibers(first: list[Fiber]) -> None:
    """What a greenlet does: one fiber after the other.

    ``first`` is emptied: a greenlet never lets go of what it was begun with, where no collector
    sees it, and with a fiber that would be the whole session.
    """
    hub = getcurrent().parent
    fiber: Fiber | None = first.pop()
    while fiber is not None:
        fiber.run()
        if fiber.collected:
            return
        fiber = None  # nothing of it is kept while the greenlet waits
        fiber = hub.switch()
