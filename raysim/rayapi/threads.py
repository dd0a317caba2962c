"""Threads of a program: fibers of its process, and locks that fibers can wait for.

Real counterpart: ``threading`` in a driver or worker. A thread is one more fiber of the process
that starts it; like all of them it gives way where it waits: for a lock, in ``time.sleep``, in a
call of Ray. Locks that a program makes, also through ``Event``, ``Condition``, ``Queue`` or
``ThreadPoolExecutor``, are fibers'; whatever libraries make for themselves stays the machine's.

Not modelled: ``threading.local`` (all threads of a run share it), ``get_ident``, threads that start
before ``ray.init()``. A thread that never waits holds up the others, as if it kept the GIL.

With ``loader`` this is the only file of the package that may import ``threading``: it replaces it.
"""

from __future__ import annotations

import queue
import sys
import sysconfig
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from raysim.rayapi.calls import program_call
from raysim.rayapi.execution import ProcessExit
from raysim.rayapi.fibers import HUB, Fiber, Waiter
from raysim.rayapi.library_code import end_process
from raysim.rayapi.tracebacks import INSTALLED, NOT_THEIRS
from raysim.rayapi.unsupported import NotEmulatedError

_STDLIB = f"{sysconfig.get_path('stdlib')}/"
_BUILT_ON_LOCKS = tuple(
    f"{_STDLIB}{name}" for name in ("threading.py", "queue.py", "concurrent/", "asyncio/")
)
"""Who makes a lock there makes it for whoever has called."""


_STARTING: list[threading.Thread] = []
"""A thread of the machine's, whose start waits for it."""


def _for_program() -> bool:
    """Whether a program's own code asks for a lock, or one of its threads."""
    if HUB.here() is None or _STARTING:
        return False
    frame = sys._getframe(2)  # noqa: SLF001  (who has called)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BUILT_ON_LOCKS):
        frame = frame.f_back
    file = frame.f_code.co_filename
    return file == __file__ or not file.startswith(NOT_THEIRS + INSTALLED)


def _here() -> Fiber:
    fiber = HUB.here()
    assert fiber is not None, "a program's lock is waited for outside of the program"
    return fiber


class Lock:
    """``threading.Lock``: who waits longest gets it first."""

    def __init__(self) -> None:
        self._held = False
        self._waiting: deque[Waiter] = deque()

    def __reduce__(self) -> Any:
        """As Python says it of its own."""
        raise TypeError("cannot pickle '_thread.lock' object")

    def __repr__(self) -> str:
        """As Python's own."""
        return f"<{'' if self._held else 'un'}locked _thread.lock object at {id(self):#x}>"

    @program_call
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether it is had."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if self._held and blocking:
            _here().settle()
        if not self._held:
            self._held = True
            return True
        return blocking and bool(_here().block(partial(_join_queue, self._waiting, timeout)))

    def release(self) -> None:
        """It is the next one's."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = _wake_first(self._waiting)

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _join_queue(waiting: deque[Waiter], timeout: float | None, then: Waiter) -> None:
    waiting.append(then)
    if timeout is not None and timeout >= 0:
        sim = _here().process.session.sim
        sim.call_later(round(timeout * 1e9), then, False)


def _wake_first(waiting: deque[Waiter]) -> bool:
    """Of those that still wait; whether there was one."""
    while waiting:
        waiter = waiting.popleft()
        if waiter.fiber is not None:
            waiter(True)
            return True
    return False


class RLock:
    """``threading.RLock``: its owner may take it again."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Fiber | None = None
        self._count = 0

    def __reduce__(self) -> Any:
        """As Python says it of its own."""
        raise TypeError("cannot pickle '_thread.RLock' object")

    def __repr__(self) -> str:
        """As Python's own, which also tells the thread's number."""
        state = "locked" if self._count else "unlocked"
        return f"<{state} _thread.RLock object count={self._count} at {id(self):#x}>"

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Whether it is had."""
        if self._is_owned():
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = HUB.here(), 1
        return True

    def release(self) -> None:
        """Once for each time it was taken."""
        if not self._is_owned():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # what ``threading.Condition`` asks of it

    def _is_owned(self) -> bool:
        return self._count > 0 and self._owner is HUB.here()

    def _release_save(self) -> int:
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def _acquire_restore(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = HUB.here(), count


def _lock() -> Any:
    return Lock() if _for_program() else _REAL["_allocate_lock"]()


def _rlock() -> Any:
    return RLock() if _for_program() else _REAL["RLock"]()


def _simple_queue() -> Any:
    return queue._PySimpleQueue() if _for_program() else _REAL_QUEUE()  # type: ignore[attr-defined]  # noqa: SLF001  (the one that is built on locks)


# ---- threads -------------------------------------------------------------------------------------


class _Running:
    """A thread that has been started."""

    def __init__(self) -> None:
        self.fiber: Fiber | None = None
        """Until it is over."""
        self.joining: deque[Waiter] = deque()


_THREADS: WeakKeyDictionary[threading.Thread, _Running] = WeakKeyDictionary()
_OF_FIBER: WeakKeyDictionary[Fiber, threading.Thread] = WeakKeyDictionary()


def _start(thread: threading.Thread) -> None:
    here = HUB.here()
    if here is None or not _for_program():  # a library's waits with the machine's locks
        _STARTING.append(thread)
        try:
            _REAL_START(thread)
        finally:
            _STARTING.remove(thread)
        return
    if thread in _THREADS:
        raise RuntimeError("threads can only be started once")
    if here.process.core is None:
        raise NotEmulatedError(
            f"threading.Thread ({thread.name}) before ray.init()", "threads started after it"
        )
    running = _THREADS[thread] = _Running()
    running.fiber = Fiber(
        here.process, None, partial(_run, thread), partial(_ended, running), thread.name
    )
    _OF_FIBER[running.fiber] = thread
    thread._started.set()  # type: ignore[attr-defined]  # noqa: SLF001  (as its own ``start`` does)
    running.fiber.lead_ns = here.lead_ns  # not settled: executors start threads under a real lock
    running.fiber.start()


def _run(thread: threading.Thread) -> None:
    try:
        thread.run()
    except SystemExit:
        pass
    except Exception as error:  # noqa: BLE001  (whatever a program raises)
        said = threading.ExceptHookArgs((type(error), error, error.__traceback__, thread))
        threading.excepthook(said)


def _ended(running: _Running, fiber: Fiber) -> None:
    running.fiber = None
    while _wake_first(running.joining):
        pass
    if isinstance(fiber.error, ProcessExit) and not fiber.process.is_driver:
        end_process(fiber.process, fiber.error)
    elif fiber.error is not None:
        raise fiber.error


@program_call
def _join(thread: threading.Thread, timeout: float | None = None) -> None:
    running = _THREADS.get(thread)
    if running is None:
        _REAL_JOIN(thread, timeout)
        return
    here = _here()
    if running.fiber is here:
        raise RuntimeError("cannot join current thread")
    here.settle()
    if running.fiber is not None:
        here.block(partial(_join_queue, running.joining, timeout))


def _is_alive(thread: threading.Thread) -> bool:
    running = _THREADS.get(thread)
    return _REAL_IS_ALIVE(thread) if running is None else running.fiber is not None


def _current_thread() -> threading.Thread:
    fiber = HUB.here()
    found = None if fiber is None else _OF_FIBER.get(fiber)
    return found if found is not None else _REAL_CURRENT()


def join_all() -> None:
    """At the end of a driver: those that are no daemons go on to their end."""
    here = _here()
    for thread, running in list(_THREADS.items()):
        fiber = running.fiber
        if fiber is not None and fiber.process is here.process and not thread.daemon:
            thread.join()


# ---- in place of Python's ------------------------------------------------------------------------

_REAL: dict[str, Any] = {
    name: getattr(threading, name) for name in ("Lock", "RLock", "_allocate_lock", "_time")
}
_REAL_QUEUE, _REAL_CURRENT = queue.SimpleQueue, threading.current_thread
_REAL_START, _REAL_JOIN = threading.Thread.start, threading.Thread.join
_REAL_IS_ALIVE = threading.Thread.is_alive


def _replace(module: Any, **names: Callable[..., Any]) -> None:
    for name, value in names.items():
        setattr(module, name, value)


@contextmanager
def installed() -> Iterator[None]:
    """Programs' threads are fibers meanwhile; who asks from outside of one gets real ones."""
    queue_time = queue.time  # type: ignore[attr-defined]
    _replace(threading, Lock=_lock, RLock=_rlock, _allocate_lock=_lock, _time=clock.monotonic)
    _replace(threading, current_thread=_current_thread)
    _replace(threading.Thread, start=_start, join=_join, is_alive=_is_alive)
    _replace(queue, SimpleQueue=_simple_queue, time=clock.monotonic)
    try:
        yield
    finally:
        _replace(threading, **_REAL, current_thread=_REAL_CURRENT)
        _replace(threading.Thread, start=_REAL_START, join=_REAL_JOIN, is_alive=_REAL_IS_ALIVE)
        _replace(queue, SimpleQueue=_REAL_QUEUE, time=queue_time)
        _forget_executors()


def _forget_executors() -> None:
    """Python waits at its end for threads of executors; ours are no threads it could wait for."""
    module = sys.modules.get("concurrent.futures.thread")
    if module is not None:
        for thread in [t for t in module._threads_queues if t in _THREADS]:  # noqa: SLF001  (it is what it waits for)
            del module._threads_queues[thread]  # noqa: SLF001
