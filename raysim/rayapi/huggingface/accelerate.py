"""What accelerate and transformers keep in globals, for each training worker by itself.

Real counterparts: ``accelerate/state.py`` (1.15), whose three states are shared by all objects of a
process; ``accelerate/utils/imports.py`` and ``transformers/utils/import_utils.py`` (5.24), which
ask for GPUs once and remember. Here many processes share one interpreter.
"""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.here import worker_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced

_STATES = ("PartialState", "AcceleratorState", "GradientState")
_ASK = (
    "accelerate.utils.environment", "accelerate.utils.imports", "transformers.utils",
    "transformers.utils.import_utils",
)  # fmt: skip
"""Modules whose functions remember what they have found on the machine."""


class Own:
    """A dictionary of each process, where the real one is of the only process there is.

    accelerate does the same for threads (``ThreadLocalSharedDict``).
    """

    def __init__(self, real: dict[str, Any]) -> None:
        self._real = real

    def __get__(self, _obj: Any, _kind: Any = None) -> dict[str, Any]:
        worker = worker_here()
        return self._real if worker is None else worker.globals.setdefault(self, {})

    def __set__(self, _obj: Any, value: dict[str, Any]) -> None:
        found = self.__get__(None)
        found.clear()
        found.update(value)


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``accelerate.state``."""
    for name in _STATES:
        r.set(getattr(module, name), "_shared_state", Own)


def no_loading(r: Replaced, module: ModuleType) -> None:
    """Of ``accelerate.utils.fsdp_utils``: rank 0's weights need not be sent to the others."""
    if hasattr(module, "fsdp2_load_full_state_dict"):  # not in early releases
        r.call(module, "fsdp2_load_full_state_dict", lambda *_a, **_k: None)


def knows_tf32(r: Replaced, module: ModuleType) -> None:
    """Of ``transformers.training_args``: what it would also ask of this machine's torch."""
    if hasattr(module, "is_torch_tf32_available"):
        r.call(
            module, "is_torch_tf32_available", lambda _: torch.cuda.get_device_capability()[0] >= 8
        )


def remembers_packages(r: Replaced, module: ModuleType) -> None:
    """Of ``accelerate.utils.imports``: which are installed, which it looks up on disk each time."""
    r.set(module, "_is_package_available", cache)


def ask_again() -> None:
    """The machine is another one: what was remembered of the last is forgotten."""
    for name in _ASK:
        for found in list(vars(sys.modules.get(name, sys)).values()):
            clear = getattr(found, "cache_clear", None)
            if clear is not None:
                clear()
