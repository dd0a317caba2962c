"""The terminal: width, colour, complaints.

stdout carries results and nothing else; progress, logs and errors go to stderr.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.errors import ScenarioError
from raysim.report.layout import NARROW, SPECIAL, WIDE, ascii_only

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Say in one line that ``target`` cannot be written, as a ScenarioError."""
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"cannot write {target}: {error.strerror or error}") from error


def width() -> int:
    """100 columns, or 80 where the terminal has fewer; a pipe has 100."""
    return WIDE if shutil.get_terminal_size((WIDE, 24)).columns >= WIDE else NARROW


def show(text: Text) -> None:
    """Print styled text: colour on a terminal only, markup and highlighting off."""
    text = text if _encodes(SPECIAL) else ascii_only(text)
    _console().print(text, soft_wrap=True)


def say(line: str) -> None:
    """Print one plain line of results."""
    sys.stdout.write(line if line.endswith("\n") else line + "\n")


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()
) -> None:
    """Print a table as wide as its cells, which are data: nothing in them is markup."""
    from rich.text import Text

    cells = [list(map(str, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
    numeric = {i for i, header in enumerate(headers) if header in set(right)}

    def line(row: Sequence[str]) -> str:
        padded = (
            c.rjust(w) if i in numeric else c.ljust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    show(Text(line(headers), "bold"))
    for row in cells:
        show(Text(line(row)))


def complain(problems: Iterable[str]) -> None:
    """One line per problem on stderr."""
    for problem in problems:
        sys.stderr.write(problem.rstrip() + "\n")


def confess(command: str) -> None:
    """Traceback of the exception in flight, from our first frame on, and what to send us."""
    import platform
    import traceback

    from raysim import __version__

    _, error, trace = sys.exc_info()
    here = str(Path(__file__).parent)
    frame = trace.tb_next if trace else None
    while frame and not frame.tb_frame.f_code.co_filename.startswith(here):
        frame = frame.tb_next
    traceback.print_exception(None if error is None else type(error), error, frame or trace)
    sys.stderr.write(
        "\nThis is a fault of raysim, not of your files. Please report the lines above and these:\n"
        f"    raysim {__version__}, Python {platform.python_version()}, {platform.system()}\n"
        f"    replay with: {command}\n"
    )


def is_watched() -> bool:
    """Somebody sees standard error while things happen."""
    return sys.stderr.isatty()


def wall_s() -> float:
    """Seconds since some moment, to say how long a person waited; never used in a prediction."""
    return os.times().elapsed


def _console() -> Console:
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=None)


def _encodes(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
