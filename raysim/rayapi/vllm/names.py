"""``import vllm`` finds the emulated one: a finder for its modules.

Real counterpart: the package (0.8 to 0.14's names), installed or not. Modules that are not here are
refused by name.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from raysim.rayapi.later import found_first
from raysim.rayapi.standins.packages import of_a_script
from raysim.rayapi.standins.said import program_here
from raysim.rayapi.unsupported import NotEmulatedError

_PACKAGES = (
    "vllm.distributed.device_communicators", "vllm.engine", "vllm.lora", "vllm.model_executor",
    "vllm.model_executor.model_loader", "vllm.v1", "vllm.v1.engine", "vllm.v1.worker",
    "vllm.worker", "vllm.entrypoints",
)  # fmt: skip
_MODULES = {
    "vllm": "package", **dict.fromkeys(_PACKAGES, ""),
    "vllm.config": "settings", "vllm.engine.arg_utils": "settings",
    "vllm.engine.async_llm_engine": "async_engine", "vllm.v1.engine.async_llm": "async_engine",
    "vllm.entrypoints.llm": "llm", "vllm.inputs": "requests", "vllm.inputs.data": "requests",
    "vllm.sampling_params": "requests", "vllm.outputs": "requests", "vllm.logprobs": "requests",
    "vllm.sequence": "requests", "vllm.lora.request": "requests",
    "vllm.distributed": "groups", "vllm.distributed.utils": "groups",
    "vllm.distributed.parallel_state": "groups",
    "vllm.distributed.device_communicators.pynccl": "groups",
    "vllm.model_executor.model_loader.utils": "weights", "vllm.platforms": "platforms",
    "vllm.utils": "utils", "vllm.utils.network_utils": "utils", "vllm.utils.mem_utils": "utils",
    "vllm.worker.worker": "workers", "vllm.worker.worker_base": "workers",
    "vllm.v1.worker.gpu_worker": "workers", "vllm.v1.worker.worker_base": "workers",
    "zmq": "sockets",
}  # fmt: skip
"""vLLM's names, and the modules of this package that have what is in them."""
_OURS = frozenset(["vllm", "zmq"])


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in _OURS or program_here() is None:
            return None
        if name in _OURS and not of_a_script(sys._getframe(1)):  # noqa: SLF001
            return None
        if name not in _MODULES:
            raise NotEmulatedError(name, "vllm.LLM, AsyncLLMEngine, their workers and groups")
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        ours = _MODULES[spec.name]
        made = ModuleType(spec.name)
        found = vars(import_module(f"raysim.rayapi.vllm.{ours}")) if ours else {}
        vars(made).update({k: v for k, v in found.items() if not k.startswith("_")})
        vars(made)["__getattr__"] = partial(_missing, spec.name)
        if spec.name == "vllm":
            vars(made)["__version__"] = found["VERSION"]
        return made

    def exec_module(self, module: ModuleType) -> None:
        """It is complete; a driver that has it may hold a model itself."""
        if module.__name__ == "vllm":
            import_module("raysim.rayapi.ranks.by_hand").begin_driver()


def _missing(module: str, name: str) -> Any:
    """A module below that nobody has imported yet; else it is refused."""
    if f"{module}.{name}" in _MODULES:
        return import_module(f"{module}.{name}")
    if name.startswith("__"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    raise NotEmulatedError(f"{module}.{name}", "vllm.LLM, AsyncLLMEngine, their workers and groups")


def vllm_names() -> AbstractContextManager[None]:
    """``import vllm`` finds this package."""
    return found_first(_Finder(), _OURS)
