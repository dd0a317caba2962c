"""Packages that a process imports with a program's code.

Real counterpart: cloudpickle names the modules that a function or class uses, and whoever unpickles
it imports them: a worker's first task that knows torch begins a second later, with transformers
three.

Not modelled: packages that are not listed, files that are not in the page cache (on a virtual disk
torch took 6 s).
"""

from __future__ import annotations

import pickletools
import re
from functools import lru_cache
from typing import Any

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.compute import use_cores
from raysim.rayapi.serialization import load_code

CORE_S = {"torch": 1.21, "transformers": 2.30, "deepspeed": 0.34, "accelerate": 0.10}
"""Seconds of CPU beyond ``import ray`` (0.40 s), of the last three beyond torch; of transformers
with one model's class. Median of three processes on a Xeon of 2 cores, warm files, Python 3.11,
torch 2.13, 2026-11-27 (user and system time)."""

_NEEDS_TORCH = "ray.util.collective", "raysim.rayapi.util.collective"
"""A module that imports it, as Ray names it and as it is here."""

_PATH = re.compile(r"[\w.]+")


def load_program(code: bytes, *, there: frozenset[str] = frozenset()) -> Any:
    """The program's function or class, as the running process has it, and the time that takes.

    Parameters
    ----------
    code
        By cloudpickle.
    there
        Packages that the process has whatever it runs.
    """
    fiber = this_fiber()
    core = fiber.process.core
    if core is not None:
        new = _named(code) - there - core.imported
        core.imported |= new
        if new:
            use_cores(fiber, sum(CORE_S[name] for name in sorted(new)), 1.0)
    return load_code(code)


@lru_cache(maxsize=256)
def _named(code: bytes) -> frozenset[str]:
    """Listed packages that a pickle names, within functions too, and torch with any of them."""
    words = {word for _, word, _ in pickletools.genops(code) if type(word) is str}
    if any(word.startswith(_NEEDS_TORCH) for word in words):
        words.add("torch")
    found = {word.partition(".")[0] for word in words if _PATH.fullmatch(word)} & CORE_S.keys()
    return frozenset(found | {"torch"} if found else ())
