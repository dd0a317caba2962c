"""What a run was told of stand-ins: once each, on standard error, with where it was asked for.

Real counterpart: none.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from raysim.rayapi.fibers import HUB
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.tracebacks import INSTALLED, NOT_THEIRS

_SAID = "stood-for"


def program_here() -> ProcessState | None:
    """The process of an emulated program that calls; None: this machine's own."""
    fiber = HUB.here()
    return None if fiber is None else fiber.process


def say(text: str) -> None:
    """To the user, once in a run."""
    here = program_here()
    if here is None:
        return
    said: set[str] = here.session.libraries.setdefault(_SAID, set())
    if text not in said:
        said.add(text)
        sys.stderr.write(f"raysim: {text}\n")


def asked_at() -> str:
    """``train.py:12`` of the script's own line that is under way; empty: nowhere."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  (as tracebacks do)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*INSTALLED, *NOT_THEIRS, "<frozen")):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
