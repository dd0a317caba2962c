"""Packages that a script imports for speed or for a metric, where they are not installed.

Real counterparts: flash_attn, apex, bitsandbytes, xformers, evaluate, datasets. Each is a module of
``absent/`` that has the names people use; it says once what stands for what. An installed package
is itself. Whoever only asks whether one is installed gets the true answer, and so do libraries.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module, util
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

from raysim.rayapi.standins.said import program_here, say
from raysim.rayapi.tracebacks import INSTALLED
from raysim.rayapi.trackers import only_asks

PACKAGES = {
    "apex": "optimizers and norms as torch's own fused ones",
    "bitsandbytes": "its 8-bit optimizers by their states, nothing else of it",
    "datasets": "load_dataset gives published rows and columns, map works on few of them",
    "evaluate": "metrics are nan",
    "flash_attn": "its functions as torch's own fused attention",
    "torchvision": "black pictures of published sizes, transforms by sizes, a few of its models",
    "xformers": "memory_efficient_attention as torch's own fused attention",
}
"""What stands for them."""
_REQUIRE = frozenset(["transformers.utils.versions"])
"""Libraries' modules that ask for a version in a script's name."""
_KEPT = ("__getattr__", "__version__")
SAID = "{} is not installed: {}"
_OURS = "raysim.rayapi.standins.absent"
_WITHIN = {
    "apex.contrib.optimizers": "apex", "apex.multi_tensor_apply": "apex",
    "apex.normalization": "apex", "apex.normalization.fused_layer_norm": "apex",
    "apex.optimizers": "apex", "apex.parallel": "apex",
    "bitsandbytes.optim": "bitsandbytes", "datasets.utils": "datasets",
    "datasets.distributed": "datasets", "datasets.arrow_dataset": "datasets",
    "datasets.features": "features", "datasets.utils.logging": "datasets",
    "flash_attn.bert_padding": "flash_attn",
    "flash_attn.flash_attn_interface": "flash_attn", "xformers.ops": "xformers",
    "flash_attn.modules": "flash_attn", "flash_attn.modules.mha": "flash_attn",
    **dict.fromkeys((
        "flash_attn.layers", "flash_attn.layers.rotary", "flash_attn.losses",
        "flash_attn.losses.cross_entropy", "flash_attn.ops", "flash_attn.ops.rms_norm",
        "flash_attn.ops.triton", "flash_attn.ops.triton.cross_entropy",
        "flash_attn.ops.triton.layer_norm", "flash_attn.ops.triton.rotary", "flash_attn.utils",
        "flash_attn.utils.distributed",
    ), "flash_attn_layers"),
    "torchvision.datasets": "torchvision_datasets", "torchvision.models": "torchvision_models",
    "torchvision.models.resnet": "torchvision_models",
    "torchvision.ops": "torchvision_ops", "torchvision.ops.misc": "torchvision_ops",
    "torchvision.transforms": "torchvision_transforms",
    "torchvision.transforms.functional": "torchvision_transforms",
    "torchvision.transforms.v2": "torchvision_transforms",
    "torchvision.utils": "torchvision_utils",
}  # fmt: skip
"""Their modules, and the module here that has what is in them."""


@contextmanager
def packages_of_scripts() -> Iterator[None]:
    """While a world is emulated."""
    finder = _Finder()
    before, find, version = set(sys.modules), util.find_spec, importlib.metadata.version
    sys.meta_path.append(finder)  # after all that find what is installed
    util.find_spec = partial(_installed, find)
    importlib.metadata.version = partial(_version, version)
    try:
        yield
    finally:
        util.find_spec, importlib.metadata.version = find, version
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if isinstance(sys.modules[name], Absent):
                del sys.modules[name]


class Absent(ModuleType):
    """A package that is not installed."""

    def __reduce__(self) -> tuple[Any, ...]:
        """By its name, as any module that a task of the script's uses."""
        return import_module, (self.__name__,)


def _installed(find: Any, name: str, package: str | None = None) -> ModuleSpec | None:
    """``importlib.util.find_spec``: a stand-in that was imported is still not installed."""
    if isinstance(sys.modules.get(name), Absent):
        return None
    found: ModuleSpec | None = find(name, package)
    return found


def _version(version: Any, name: str) -> str:
    """``importlib.metadata.version``: a script may require one of what it has imported."""
    stands, asks = sys.modules.get(name), sys._getframe(1)  # noqa: SLF001
    by_script = asks.f_globals.get("__name__") in _REQUIRE or of_a_script(asks)
    if by_script and isinstance(stands, Absent):
        return str(vars(stands)["__version__"])
    found: str = version(name)
    return found


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For a program that imports one."""
        top = name.partition(".")[0]
        if top not in PACKAGES or program_here() is None:
            return None
        stands = isinstance(sys.modules.get(top), Absent)  # whoever has found it finds its modules
        if not stands and not of_a_script(sys._getframe(1)):  # noqa: SLF001
            return None
        if (name != top and name not in _WITHIN) or PathFinder.find_spec(top) is not None:
            return None
        return ModuleSpec(name, _Loader(_WITHIN.get(name, top)), is_package=True)


def of_a_script(frame: FrameType | None) -> bool:
    """Whether the import stands in code that is not installed; libraries try what there is."""
    if only_asks(frame):
        return False
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    file = "" if frame is None else frame.f_code.co_filename
    return not file.startswith(INSTALLED) and "site-packages" not in file


class _Loader(Loader):
    """Of a module of ``absent/``, under its real counterpart's name."""

    def __init__(self, ours: str) -> None:
        self._ours = ours

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Empty."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """What is in ours."""
        found: Any = vars(import_module(f"{_OURS}.{self._ours}"))
        public = {n: v for n, v in found.items() if not n.startswith("__") or n in _KEPT}
        vars(module).update(public)
        top = module.__name__.partition(".")[0]
        say(SAID.format(top, PACKAGES[top]))
