"""A process that splits: every branch goes on from this very moment, and sends back how it ends.

Real counterpart: fork(2). A running simulation is generators, greenlets and closures that nothing
can pickle; the operating system copies them all, page by page and only where a branch writes.

Not modelled: what is outside of the process. Files that a program writes are shared by all
branches; what branches print is not shown.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import selectors
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from raysim.errors import ScenarioError

Value = TypeVar("Value")
BASELINE = "baseline"
"""Name of what goes on without a change."""
CHUNK = 1 << 16
_exit = os._exit  # emulated worlds put one of their own in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a branch ended: with a value, or with why there is none."""

    value: Any = None
    failure: str = ""
    """In a line."""
    detail: str = ""
    """Of an exception, its traceback."""


class Branches:
    """Branches of one piece of work, which splits itself once while it is done.

    Parameters
    ----------
    names
        Of the branches; the process that splits is none of them.
    processes
        That run at one time; by default as many as there are processors.

    Raises
    ------
    ScenarioError
        A branch has the name of what goes on without a change.

    Examples
    --------
    >>> from raysim.branching import Branches
    >>> branches = Branches(["doubled"])
    >>> def work():
    ...     x = 21
    ...     return 2 * x if branches.split() == "doubled" else x
    >>> branches.play(work), branches.endings["doubled"].value
    (21, 42)
    """

    def __init__(self, names: Sequence[str], *, processes: int | None = None) -> None:
        if BASELINE in names:
            raise ScenarioError(f"a change cannot be named {BASELINE!r}: that is the run without")
        self.names = tuple(names)
        self.endings: dict[str, Ending] = {}
        """By name, once the work has split."""
        self.have_split = False
        self._processes = processes or os.cpu_count() or 1
        self._own: str | None = None
        self._pipe = -1
        self._threads_before = set(threading.enumerate())
        self._printed_to = {1, 2, *_files_of(sys.stdout, sys.stderr)}
        """Before the work puts streams of its own in their place."""

    def play(self, work: Callable[[], Value]) -> Value:
        """Do the work; what it returns or raises is sent back by a branch, and ends it."""
        try:
            value = work()
        except BaseException as error:
            if self._own is not None:
                self._send(Ending(failure=_in_a_line(error), detail=traceback.format_exc()))
            raise
        if self._own is not None:
            self._send(Ending(value=value))
        return value

    def split(self) -> str | None:
        """Split here: the name in a branch; None in the process that splits, when all have ended.

        Raises
        ------
        ScenarioError
            Something of the work would be missing in branches.
        """
        self._refuse()
        self.have_split = True
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        gc.freeze()  # a collection in a branch would copy every page it looks at
        waiting, running = deque(self.names), dict[int, _Child]()
        selector = selectors.DefaultSelector()
        try:
            while waiting or running:
                while waiting and len(running) < self._processes:
                    child = self._fork(waiting.popleft(), selector, running)
                    if self._own is not None:
                        return self._own
                    if child is not None:
                        running[child.pipe] = child
                        selector.register(child.pipe, selectors.EVENT_READ)
                for key, _ in selector.select() if running else ():
                    self._hear(running, key.fd, selector)
        except BaseException:
            for child in running.values():
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
            raise
        finally:
            selector.close()
        return None

    def _refuse(self) -> None:
        """Threads are not copied: those of the work itself would be missing."""
        if not hasattr(os, "fork"):
            raise ScenarioError(f"{sys.platform} has no fork: run each what-if from its beginning")
        new = [t.name for t in threading.enumerate() if t not in self._threads_before]
        if new:
            raise ScenarioError(
                f"the program has started {len(new)} threads ({', '.join(sorted(new)[:3])}), which "
                "a fork does not copy: have it use no threads, or run each what-if from its "
                "beginning"
            )

    def _fork(
        self, name: str, selector: selectors.BaseSelector, running: dict[int, _Child]
    ) -> _Child | None:
        """The parent's end of a new branch; None within it, or if there can be none."""
        ours, theirs = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(ours)
            os.close(theirs)
            self.endings[name] = Ending(failure=f"no process could be made: {error.strerror}")
            return None
        if pid:
            os.close(theirs)
            return _Child(name, pid, ours)
        try:
            self._own, self._pipe = name, theirs
            selector.close()
            for pipe in (ours, *running):
                os.close(pipe)
            running.clear()
            _be_quiet(self._printed_to)
        except BaseException:  # noqa: BLE001  (whatever it is, two processes must not go on as one)
            _exit(1)
        return None

    def _hear(
        self, running: dict[int, _Child], pipe: int, selector: selectors.BaseSelector
    ) -> None:
        """Take what a branch sends; at its end, how it ended."""
        child = running[pipe]
        heard = os.read(pipe, CHUNK)
        if heard:
            child.said += heard
            return
        selector.unregister(pipe)
        os.close(pipe)
        del running[pipe]
        _, status = os.waitpid(child.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        try:
            self.endings[child.name] = pickle.loads(child.said)  # noqa: S301  (from our own process)
        except Exception:  # noqa: BLE001  (cut short anywhere: it died before it had said it all)
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self.endings[child.name] = Ending(failure=f"its process ended by {how}")

    def _send(self, ending: Ending) -> NoReturn:
        """Say how this branch ended, and end."""
        try:
            said = pickle.dumps(ending, pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # noqa: BLE001  (pickling raises anything)
            why = f"what it found cannot be sent: {_in_a_line(error)}"
            said = pickle.dumps(Ending(failure=why))
        try:
            view = memoryview(said)
            while view:
                view = view[os.write(self._pipe, view) :]
        finally:
            _exit(0)


class _Child:
    """A branch, seen from whoever split."""

    __slots__ = ("name", "pid", "pipe", "said")

    def __init__(self, name: str, pid: int, pipe: int) -> None:
        self.name = name
        self.pid = pid
        self.pipe = pipe
        self.said = bytearray()


def _files_of(*streams: Any) -> Iterator[int]:
    for stream in streams:
        with contextlib.suppress(OSError, AttributeError):  # what is kept in memory has none
            yield stream.fileno()


def _be_quiet(printed_to: Iterable[int]) -> None:
    """Nothing that a branch prints is seen; torch's pool of threads is gone, and not asked for."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for file in printed_to:
        os.dup2(nowhere, file)
    os.close(nowhere)
    set_num_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if set_num_threads is not None:
        set_num_threads(1)


def _in_a_line(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
