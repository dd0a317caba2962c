"""``from_pretrained`` of transformers in training workers: the model that a config describes.

Real counterpart: ``transformers/modeling_utils.py`` (4.51 to 5). Only the config is read, from a
folder or the hub's cache; weights have no values, so their files need not be there. Reading them is
paid once per node, its ranks sharing: the others find them in the page cache.

Attention asked for as FlashAttention is torch's own fused one, traced alike. Not modelled:
quantized weights (refused), ``device_map``, adapters of PEFT.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes.here import steps_here
from raysim.rayapi.unsupported import NotEmulatedError

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

MODULE = "transformers.modeling_utils"
_AUTO_FROM = 5
"""The major version from which weights keep the type that they were saved in."""


@contextmanager
def installed(r: Replaced) -> Iterator[None]:
    """Whether transformers is loaded now, later or never."""
    if MODULE in sys.modules:
        _replace(r, sys.modules[MODULE])
    finder = _Finder(lambda module: _replace(r, module))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _Finder(MetaPathFinder):
    """Looks at the module when it has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of that one, as anybody else finds it."""
        if name != MODULE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._then)
        return spec


class _Loader(Loader):
    """The module's own, and what comes after."""

    def __init__(self, real: Any, then: Callable[[ModuleType], None]) -> None:
        self._real, self._then = real, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As ever."""
        made: ModuleType | None = self._real.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """As ever, and look."""
        self._real.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _replace(r: Replaced, module: ModuleType) -> None:
    def make(real: Any) -> Any:
        def from_pretrained(cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
            steps = steps_here()
            if steps is None:
                return real.__func__(cls, name, *args, **kwargs)
            return _described(steps, cls, name, kwargs)

        return classmethod(from_pretrained)

    r.set(module.PreTrainedModel, "from_pretrained", make)


def _described(steps: Steps, cls: Any, name: Any, kwargs: dict[str, Any]) -> Any:
    """A model of the config's shapes."""
    if kwargs.get("quantization_config") is not None:
        raise NotEmulatedError("from_pretrained(quantization_config=)", "weights in 16 or 32 bits")
    config, more = kwargs.pop("config", None), dict(kwargs)
    said = more.pop("dtype", more.pop("torch_dtype", None))
    attention = more.pop("attn_implementation", None)
    if not hasattr(config, "to_dict"):
        config, more = cls.config_class.from_pretrained(
            config or name, return_unused_kwargs=True, **more
        )
    if attention is not None:
        config._attn_implementation = "sdpa" if "flash" in attention else attention  # noqa: SLF001
    model = cls(config)
    dtype = _dtype(said, config)
    if dtype is not None:
        model = model.to(dtype)
    size_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    steps.worker.read_bytes(size_bytes / steps.worker.context.local_world_size)
    return model.eval()


def _dtype(said: Any, config: Any) -> torch.dtype | None:
    """What weights are loaded in; None: what torch makes by default."""
    from transformers import __version__ as version

    if said is None and int(version.partition(".")[0]) >= _AUTO_FROM:
        said = "auto"
    if said == "auto":
        said = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    if isinstance(said, str):
        said = getattr(torch, said.removeprefix("torch."))
    found: torch.dtype | None = said
    return found
