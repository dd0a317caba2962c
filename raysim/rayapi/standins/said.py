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
    frame = own_frame(sys._getframe(1))  # noqa: SLF001  (as tracebacks do)
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the script's own code, from ``frame`` on; None: there is none."""
    while frame is not None and frame.f_code.co_filename.startswith(
        (*INSTALLED, *NOT_THEIRS, "<frozen")
    ):
        frame = frame.f_back
    return frame
