"""safetensors in training workers: files of shapes, as ``torch.save`` writes them here.

Real counterpart: ``safetensors/torch.py`` (0.8), which copies tensors to arrays and writes them. Of
a file of weights that is on this machine only the head is read, and numbers that may count.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from raysim.rayapi.shapes import files
from raysim.rayapi.shapes.cpu_work import stays_on_cpu
from raysim.rayapi.shapes.devices import on_gpu
from raysim.rayapi.shapes.known import MOST_FLOATS

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps


def install(r: Replaced, module: ModuleType) -> None:
    """Of ``safetensors.torch``: what ``save_file`` and ``load_file`` call, by any name."""
    before = "_flatten_as_ptr" if hasattr(module, "_flatten_as_ptr") else "_flatten"  # older
    r.around(module, before, _flatten)
    r.around(module, "serialize_file", _serialize)
    r.around(module, "serialize", _serialized)
    reading(r, module)


def reading(r: Replaced, module: ModuleType) -> None:
    """Of ``safetensors`` too, where scripts find the same."""
    r.around(module, "safe_open", _open)


def own_storages(r: Replaced, module: ModuleType) -> None:
    """Of ``accelerate.utils``: which tensors share one, where none has an address."""
    if hasattr(module, "id_tensor_storage"):  # of both modules in recent releases
        r.around(module, "id_tensor_storage", _storage)


def _flatten(real: Any, _steps: Steps, tensors: Mapping[str, Any], *more: Any) -> Any:
    return _Shapes(tensors) if any(t.is_meta for t in tensors.values()) else real(tensors, *more)


class _Shapes(dict[str, torch.Tensor]):
    """What is to be written, by name."""


def _serialize(real: Any, steps: Steps, flat: Any, filename: Any, **more: Any) -> None:
    if isinstance(flat, _Shapes):
        files.write(steps, dict(flat), filename)
    else:
        real(flat, filename, **more)


def _serialized(real: Any, steps: Steps, flat: Any, **more: Any) -> Any:
    """``save``, whose bytes the caller writes (torchtune)."""
    if not isinstance(flat, _Shapes):
        return real(flat, **more)
    text = io.BytesIO()
    files.write(steps, dict(flat), text)
    return text.getvalue()


def _open(real: Any, _steps: Steps, filename: Any, *args: Any, **kwargs: Any) -> Any:
    found = files.opened(filename)
    if found is not None:
        return _Opened(found)
    device = kwargs.pop("device", args[1] if len(args) > 1 else "cpu")
    file = real(filename, *args[:1], **kwargs)
    return file if isinstance(file, _Weights) else _Weights(file, device)


class _Weights:
    """``safe_open`` of a file of this machine: shapes of many numbers, and integers as they are."""

    def __init__(self, file: Any, device: Any) -> None:
        self._file, self._device = file, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Weights:
        self._file.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._file.__exit__(*raised)

    def get_tensor(self, name: str) -> torch.Tensor:
        """One of them, where it was asked for."""
        said = self._file.get_slice(name)
        shape, dtype = said.get_shape(), _NUMBERS.get(said.get_dtype())
        if dtype is None or math.prod(shape) <= MOST_FLOATS:
            found: torch.Tensor = self._file.get_tensor(name)
        else:
            found = stays_on_cpu(torch.empty(shape, dtype=dtype))
        return found.to(self._device) if on_gpu(self._device) else found

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """All."""
        return {name: self.get_tensor(name) for name in self._file.keys()}  # noqa: SIM118  (no dict)


_NUMBERS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class _Opened:
    """``safe_open`` of a file of shapes."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def keys(self) -> list[str]:
        """Names."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> torch.Tensor:
        """One of them."""
        return self._tensors[name]

    def get_tensors(self) -> dict[str, torch.Tensor]:
        """All."""
        return self._tensors

    def metadata(self) -> dict[str, str]:
        """What transformers asks for."""
        return {"format": "pt"}


def _storage(real: Any, _steps: Steps, tensor: Any) -> Any:
    if not tensor.is_meta:
        return real(tensor)
    storage = tensor.untyped_storage()
    return tensor.device, storage._cdata, storage.nbytes()  # noqa: SLF001  (its identity)
