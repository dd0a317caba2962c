"""Tracebacks of programs as Python prints them, without the frames of raysim."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path

OURS = f"{Path(__file__).resolve().parent.parent}/"
NOT_THEIRS = (OURS, "<frozen ")
"""Where frames are that no user wrote."""
INSTALLED = tuple(f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "purelib", "platlib"))
"""Where frames are that the user did not write either."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
"""Ray colours the heads of its tracebacks."""


def user_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, without the frames of raysim."""
    told = traceback.TracebackException.from_exception(error)
    seen: traceback.TracebackException | None = told
    parts = []
    while seen is not None and seen not in parts:
        parts.append(seen)
        seen.stack = traceback.StackSummary.from_list(
            [f for f in seen.stack if not f.filename.startswith(NOT_THEIRS)]
        )
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return COLOR.sub("", "".join(told.format())).rstrip("\n")
