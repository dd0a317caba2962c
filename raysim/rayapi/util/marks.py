"""``ray.util.annotations``: marks of an API, which programs may put on their own.

Real counterpart: ``python/ray/util/annotations.py`` of ray 2.60, which also adds to docstrings.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from raysim.rayapi.unsupported import getattr_of


class RayDeprecationWarning(DeprecationWarning):
    """Of what is deprecated, where it says so."""


def _marked(kind: str, args: tuple[Any, ...], **notes: Any) -> Any:
    def mark(target: Any) -> Any:
        target._annotated = target.__name__  # noqa: SLF001  (as Ray's own tools read it)
        target._annotated_type = kind  # noqa: SLF001
        for name, value in notes.items():
            setattr(target, f"_{name}", value)
        return target

    return mark(args[0]) if len(args) == 1 and callable(args[0]) else mark


def _mark_annotated(target: Any, **_notes: Any) -> None:
    target._annotated = target.__name__  # noqa: SLF001  (as above)


def PublicAPI(*args: Any, stability: str = "stable", api_group: str = "Others") -> Any:  # noqa: N802
    """Meant for users."""
    if stability not in ("stable", "beta", "alpha"):
        raise ValueError(f"Invalid stability level: {stability}")
    return _marked("PublicAPI", args, annotated_api_group=api_group)


def DeveloperAPI(*args: Any, **_options: Any) -> Any:  # noqa: N802  (Ray's name)
    """Meant for authors of libraries."""
    return _marked("DeveloperAPI", args)


def Deprecated(*args: Any, message: str | None = None, warning: bool = False) -> Any:  # noqa: N802
    """Will go; with ``warning``, whoever calls it is told."""

    def mark(target: Any) -> Any:
        if not warning:
            return _marked("Deprecated", (target,))
        said = (
            message or f"{target.__name__} is deprecated and will be removed in a future release."
        )

        @functools.wraps(target)
        def warned(*given: Any, **named: Any) -> Any:
            warnings.warn(said, RayDeprecationWarning, stacklevel=2)
            return target(*given, **named)

        return _marked("Deprecated", (warned,))

    decorated: Callable[[Any], Any] = mark
    return decorated(args[0]) if len(args) == 1 and callable(args[0]) else decorated


__getattr__ = getattr_of("ray.util.annotations")
