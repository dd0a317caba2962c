"""Tasks of maps that try a program's function again, and what they add to its error.

Real counterpart: ``iterate_with_retry`` of ``ray/data/_internal/util.py``, as ``_map_task`` of
``operators/map_operator.py`` calls it: ``DataContext.retried_map_errors``, ``max_map_retries``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from raysim.kernel.rng import Streams
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import sleep_s
from raysim.rayapi.data.context import DataContext

T = TypeVar("T")
MAX_BACKOFF_S = 32


def retried(work: Callable[[], T], name: str) -> T:
    """What ``work`` answers, tried again after a wait that doubles, of which a share is drawn."""
    context = DataContext.get_current()
    most, waited_s, attempt = context.max_map_retries + 1, 0.0, 1
    draws = Streams(0)(f"map_retries/{name}")
    while True:
        try:
            return work()
        except Exception as error:
            if attempt == most or not _is_retried(error, context.retried_map_errors):
                _say_attempts(error, attempt, most, waited_s)
                raise
        backoff_s = min(2**attempt, MAX_BACKOFF_S) * float(draws.random())
        waited_s += backoff_s
        attempt += 1
        sleep_s(this_fiber(), backoff_s)


def _is_retried(error: Exception, said: bool | list[str]) -> bool:
    """All or none, or those whose text, or that of their cause, has one of the patterns."""
    if isinstance(said, bool):
        return said
    text = " ".join(f"{type(e).__name__}: {e}" for e in (error, error.__cause__) if e)
    return any(pattern in text or re.search(pattern, text) for pattern in said)


def _say_attempts(error: Exception, attempts: int, most: int, waited_s: float) -> None:
    """``_annotate_exception_with_retry_context``."""
    said = (
        f"Failed to apply UDF transform after {attempts}/{most} attempts (total backoff "
        f"{waited_s:.1f}s).\nTo change retry attempts, backoff, or which errors are retried, "
        "configure `ray.data.DataContext.get_current()` (`retried_io_errors` for I/O; "
        "`retried_map_errors` and `max_map_retries` for any task) if you believe this to be "
        "transient."
    )
    if error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]}\n{said}", *error.args[1:])
    else:
        error.args = (*error.args, said)
