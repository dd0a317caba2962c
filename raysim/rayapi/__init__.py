"""Ray's Python API on virtual time: unmodified Ray programs on an emulated cluster.

Real counterpart: the ``ray`` package of ray 2.60. See ``loader`` for how a program is run, ``api``
for what it imports as ``ray``. A program may also say ``import raysim.rayapi as ray``, and is then
run by raysim or by plain ``python``: ``standalone`` says on what cluster, and what differs.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

_OWN = frozenset(module.name for module in pkgutil.iter_modules(__path__))


def __getattr__(name: str) -> Any:
    """A module of this package, or what ``ray`` has, imported when it is asked for."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OWN:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.api"), name)
