"""Long runs watched on a terminal: what is happening, how far, how fast, how long still.

Two lines on standard error, drawn a few times a second by a thread that reads where the run is; the
run itself knows nothing of it. A pipe, ``--quiet`` and ``--json`` get none. Ctrl-C ends the run
where it is; ``Watch.interrupted`` says where that was.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

from raysim.cli import logs, terminal
from raysim.kernel.progress import Moment
from raysim.units import format_seconds

if TYPE_CHECKING:
    from rich.text import Text

    from raysim.kernel.progress import Progress

REFRESHES_PER_S = 4
SETTLED_S = 2.0
"""Before that nothing is said of how long it will take."""
WINDOW_S = 5.0
"""Over which events per second are counted."""
ENDLESS_S = 15.0
"""After which a program without an end in sight may be one of those that have none."""
BAR = 24
NS_PER_S = 1e9


class InterruptedRun(Exception):  # noqa: N818  (it says what happened)
    """A person pressed Ctrl-C; says what had been done and what is kept. Exit code 130."""


class Watch:
    """Where a run is, and since when."""

    def __init__(self) -> None:
        self._where: Callable[[], Moment] = lambda: Moment("starting")
        self._began_s = terminal.wall_s()
        self._first: tuple[float, float] | None = None
        """Share and time when a share was first seen: what was there before took no time."""
        self._seen: deque[tuple[float, int]] = deque()

    def follow(self, progress: Progress) -> None:
        """Watch a run that says where it is when it is asked."""
        self._where = progress
        self._first = None
        self._seen.clear()

    def told(self, doing: str, share: float) -> None:
        """Watch what says where it is from time to time."""
        self._where = lambda: Moment(doing, share)

    def phase(self, doing: str) -> None:
        """What follows is of unknown length."""
        self._where = lambda: Moment(doing)

    def interrupted(self) -> str:
        """Where the run was when it was interrupted, in words."""
        here = self._where()
        at = "" if here.now_ns is None else f" at {_virtual(here)}"
        return f"Interrupted after {span(self._elapsed_s)}{at}: {here.doing}."

    def endless(self) -> list[str]:
        """That a program with a clock shows no end, and what gives it one; nothing of others."""
        here = self._where()
        if here.now_ns is None or here.end_ns is not None or here.share is not None:
            return []
        ran = f"Still running after {span(self._elapsed_s)}, {_virtual(here)}, no end in sight: "
        return [f"{ran}Ctrl-C says where it is, --until 1h would end it there."]

    @property
    def reached_s(self) -> float:
        """Virtual time; 0 while nothing is played."""
        return (self._where().now_ns or 0) / NS_PER_S

    @property
    def _elapsed_s(self) -> float:
        return terminal.wall_s() - self._began_s

    def lines(self, columns: int) -> list[str]:
        """What is happening; then clock, times and speed, as many as there is room for."""
        here = self._where()
        facts = [f"{span(self._elapsed_s)} here"]
        left_s = self._left_s(here.share)
        if left_s is not None:
            facts.append(f"about {span(left_s)} left")
        if here.now_ns is not None:
            facts.insert(0, _virtual(here))
            if left_s is None and here.end_ns is None and self._elapsed_s > ENDLESS_S:
                facts.append("--until 1h would end it there")
        rate = self._rate(here)
        if rate:
            facts.append(f"{_rounded(rate):,} events/s")
        while len(facts) > 1 and len("  ".join(facts)) > columns:
            facts.pop()
        bar = _bar(here.share, min(BAR, columns // 4))
        return [f"{bar}{here.doing}"[:columns], "  ".join(facts)[:columns]]

    def _left_s(self, share: float | None) -> float | None:
        """By the pace since a share was first known."""
        now_s = self._elapsed_s
        if share is None:
            return None
        if self._first is None or share < self._first[0]:
            self._first = share, now_s
        done, took_s = share - self._first[0], now_s - self._first[1]
        if took_s < SETTLED_S or done <= 0.02 * (1 - self._first[0]):
            return None
        return took_s * (1 - share) / done

    def _rate(self, here: Moment) -> float:
        """Events per second of late."""
        seen, now_s = self._seen, self._elapsed_s
        if seen and here.events < seen[-1][1]:
            seen.clear()
        seen.append((now_s, here.events))
        while now_s - seen[0][0] > WINDOW_S:
            seen.popleft()
        took_s = now_s - seen[0][0]
        return (here.events - seen[0][1]) / took_s if took_s > 0 else 0.0


@contextlib.contextmanager
def watching(watch: Watch, *, shown: bool) -> Iterator[None]:
    """Watch what runs inside; drawn where standard error is a terminal.

    What the program prints on the same terminal goes above the lines.
    """
    seen = (_drawn if terminal.is_watched() else _told_once)(watch)
    with _stoppable(), seen if shown else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _told_once(watch: Watch) -> Iterator[None]:
    """Into a pipe one line, of a program that goes on without an end in sight."""
    timer = threading.Timer(ENDLESS_S, lambda: terminal.complain(watch.endless()))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _drawn(watch: Watch) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # The terminal itself: what a program prints is listened to on its way to sys.stderr.
    console = Console(file=sys.stderr, markup=False, highlight=False, emoji=False)

    class Lines:
        def __rich__(self) -> Text:
            first, second = watch.lines(console.width)
            return Text.assemble((first, ""), "\n", (second, "dim"), no_wrap=True)

    with Live(
        Lines(), console=console, refresh_per_second=REFRESHES_PER_S, transient=True,
        redirect_stdout=sys.stdout.isatty(),
    ):  # fmt: skip
        try:
            with logs.above(sys.stderr):
                yield
        finally:
            sys.stdout.flush()  # a last line without an end is still with the display
            sys.stderr.flush()


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Ctrl-C ends the run, not the program that is being run: that would take it for its own.

    Programs are greenlets; what plays them is the one that all come from. A second Ctrl-C is
    raised wherever it comes.
    """
    from greenlet import getcurrent

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        here = top = getcurrent()
        while top.parent is not None:
            top = top.parent
        if top is not here:
            top.throw(KeyboardInterrupt)
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGINT, stop)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def span(seconds: float) -> str:
    """``17 s``, ``3 min 10 s``, ``2 h 05 min``: how long a person waits."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def _virtual(here: Moment) -> str:
    assert here.now_ns is not None, "asked of a moment with a clock"
    now = format_seconds(here.now_ns / NS_PER_S)
    if here.end_ns is None:
        return f"{now} virtual"
    return f"{now} of {format_seconds(here.end_ns / NS_PER_S)} virtual"


def _bar(share: float | None, columns: int) -> str:
    """``[####      ]  41 %  ``; nothing where the end is not known."""
    if share is None:
        return ""
    full = round(min(1.0, share) * columns)
    return f"[{'#' * full}{' ' * (columns - full)}] {min(1.0, share):4.0%}  "


def _rounded(rate: float) -> int:
    """Two digits are enough of a speed."""
    step = int(10 ** max(0, len(str(int(rate))) - 2))
    return round(rate / step) * step
