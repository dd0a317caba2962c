"""``import deepspeed`` finds the emulated one: a finder for its modules.

Real counterpart: the installed package. Modules that are not here are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from raysim.rayapi.later import found_first
from raysim.rayapi.unsupported import NotEmulatedError

_MODULES = {
    "deepspeed": "deepspeed", "deepspeed.accelerator": "deepspeed.accelerator",
    "deepspeed.checkpoint": "deepspeed.saved", "deepspeed.checkpoint.utils": "deepspeed.saved",
    "deepspeed.checkpointing": "deepspeed.checkpointing",
    "deepspeed.comm": "deepspeed.comm", "deepspeed.compression": "deepspeed.compression",
    "deepspeed.compression.helper": "deepspeed.compression", "deepspeed.moe": "deepspeed.moe",
    "deepspeed.moe.layer": "deepspeed.moe", "deepspeed.moe.utils": "deepspeed.moe",
    "deepspeed.moe.experts": "deepspeed.moe", "deepspeed.moe.sharded_moe": "deepspeed.moe",
    "deepspeed.ops": "deepspeed.ops", "deepspeed.ops.adam": "deepspeed.ops",
    "deepspeed.ops.lamb": "deepspeed.ops", "deepspeed.ops.lion": "deepspeed.ops",
    "deepspeed.pipe": "deepspeed.pipe", "deepspeed.runtime": "deepspeed.pipe",
    "deepspeed.runtime.base_optimizer": "deepspeed.ops", "deepspeed.runtime.engine": "deepspeed",
    "deepspeed.runtime.lr_schedules": "deepspeed.schedules",
    "deepspeed.runtime.pipe": "deepspeed.pipe",
    "deepspeed.runtime.pipe.module": "deepspeed.pipe", "deepspeed.runtime.utils": "deepspeed.utils",
    "deepspeed.runtime.sequence_parallel": "deepspeed.parallel_state",
    "deepspeed.runtime.sequence_parallel.parallel_state_sp": "deepspeed.parallel_state",
    "deepspeed.runtime.sequence_parallel.ulysses_sp": "deepspeed.ulysses",
    "deepspeed.runtime.zero": "deepspeed.zero",
    "deepspeed.runtime.zero.offload_config": "deepspeed.offloaded",
    "deepspeed.runtime.zero.partition_parameters": "deepspeed.zero",
    "deepspeed.sequence": "deepspeed.sequence", "deepspeed.sequence.layer": "deepspeed.sequence",
    "deepspeed.utils": "deepspeed.utils", "deepspeed.utils.groups": "deepspeed.groups",
    "deepspeed.utils.logging": "deepspeed.utils",
    "deepspeed.zero": "deepspeed.zero",
}  # fmt: skip
"""DeepSpeed's names, and the modules of ``raysim.rayapi`` that have what is in them."""


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "deepspeed":
            return None
        if name not in _MODULES:
            raise NotEmulatedError(name, "deepspeed.initialize and deepspeed.pipe")
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        ours = import_module(f"raysim.rayapi.{_MODULES[spec.name]}")
        made = ModuleType(spec.name, ours.__doc__)
        names: Mapping[str, Any] = vars(ours)
        made.__dict__.update({k: v for k, v in names.items() if not _stays(spec.name, k, v)})
        made.__dict__["__getattr__"] = partial(_missing, spec.name, names.get("__getattr__"))
        return made

    def exec_module(self, module: ModuleType) -> None:
        """It is complete."""


def _stays(module: str, name: str, value: Any) -> bool:
    """Of ours alone: its own names, and modules that are imported once they are asked for."""
    return name in _OWN or (isinstance(value, ModuleType) and f"{module}.{name}" in _MODULES)


def _missing(module: str, own: Callable[[str], Any] | None, name: str) -> Any:
    """A module below that nobody has imported yet, as DeepSpeed's own import does; or ours."""
    if f"{module}.{name}" in _MODULES:
        return import_module(f"{module}.{name}")
    if own is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return own(name)


_OWN = frozenset(["__name__", "__spec__", "__loader__", "__package__", "__path__", "__file__"])


def deepspeed_names() -> AbstractContextManager[None]:
    """``import deepspeed`` finds this package."""
    return found_first(_Finder(), ["deepspeed"])
