"""``--verbose`` and ``--log-file``: what raysim's packages log about their work.

Library code asks ``logging.getLogger(__name__)`` and sets up nothing; so do scripts that import
raysim, with ``logging.basicConfig``. Once is what was read, taken and done; twice is everything.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from raysim.cli import terminal
from raysim.errors import ScenarioError

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
LINE = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
CLOCK = "%H:%M:%S"
ROOT = logging.getLogger("raysim")
log = logging.getLogger(__name__)


def begin(verbosity: int, file: Path | None) -> None:
    """Write log lines from now on; a file without ``-v`` gets those of one ``-v``.

    Raises
    ------
    ScenarioError
        The file cannot be written.
    """
    end()
    ROOT.propagate = False  # a program that sets up logging of its own hears its own alone
    if file is None and not verbosity:
        return
    try:
        handler = _handler(file)
    except OSError as error:
        raise ScenarioError(f"--log-file {file}: {error.strerror or error}") from None
    handler.setFormatter(logging.Formatter(LINE, CLOCK))
    ROOT.addHandler(handler)
    ROOT.setLevel(LEVELS[min(max(verbosity, 1), len(LEVELS) - 1)])


def _handler(file: Path | None) -> logging.Handler:
    if file is None:
        return logging.StreamHandler(sys.stderr)
    return logging.FileHandler(file, "w", encoding="utf-8")


def end() -> None:
    """Leave logging as it was."""
    for handler in list(ROOT.handlers):
        ROOT.removeHandler(handler)
        handler.close()
    ROOT.setLevel(logging.NOTSET)
    ROOT.propagate = True


@contextlib.contextmanager
def above(display: TextIO) -> Iterator[None]:
    """Lines for standard error go to a display meanwhile, which puts them above itself.

    Not to whatever ``sys.stderr`` is then: what a program writes there is listened to.
    """
    handlers = [h for h in ROOT.handlers if type(h) is logging.StreamHandler]
    before = [handler.setStream(display) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            handler.setStream(stream)


class Phases:
    """Told of phases as they begin; logs what each took of the machine."""

    def __init__(self) -> None:
        self._doing = ""
        self._since_s = terminal.wall_s()

    def __call__(self, doing: str, share: float) -> None:
        """A phase begins, and the one before has ended."""
        del share
        now_s = terminal.wall_s()
        if self._doing:
            log.info("%s: took %.2f s", self._doing, now_s - self._since_s)
        self._doing, self._since_s = doing, now_s
