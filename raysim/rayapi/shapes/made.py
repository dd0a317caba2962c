"""Where torch's functions that make tensors put them: on the GPU, as shapes, or on the CPU.

Real counterpart: ``torch/utils/_device.py``: the ``device`` argument, else the innermost
``with torch.device(...)``, else what ``torch.set_default_device`` said, else the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._device import DeviceContext

from raysim.rayapi.shapes.devices import on_gpu
from raysim.rayapi.shapes.known import META

_T = torch.Tensor
_C: Any = torch._C  # noqa: SLF001  (modes of a thread have no other door)
_INTEGERS = frozenset(["arange", "randint", "randperm", "tril_indices", "triu_indices"])
"""Make integers unless told otherwise."""
BY_VALUE = frozenset(["as_tensor", "asarray", "full", "scalar_tensor", "tensor"])


def default_device() -> torch.device | None:
    """What ``with torch.device(...)`` or ``set_default_device`` says; None: nobody says."""
    # torch keeps its context below all other modes.
    if not _C._len_torch_function_stack():  # noqa: SLF001
        return None
    lowest = _C._get_function_stack_at(0)  # noqa: SLF001
    return lowest.device if isinstance(lowest, DeviceContext) else None


def placed(func: Any, kwargs: dict[str, Any], *, on_host: bool) -> dict[str, Any]:
    """Arguments that make a new tensor where it is here."""
    device, dtype, name = kwargs.get("device"), kwargs.get("dtype"), func.__name__
    if device is not None and on_gpu(device):
        return {**kwargs, "device": META}
    kwargs.pop("device", None)
    kwargs.pop("pin_memory", None)  # there is no driver that would pin it
    if default_device() is not None:  # which torch would ask again
        kwargs["device"] = torch.device("cpu")
    if on_host:
        return kwargs
    real = not getattr(dtype, "is_floating_point", dtype is float) if dtype else name in _INTEGERS
    if real or name in BY_VALUE:
        return kwargs
    kwargs.pop("generator", None)
    return {**kwargs, "device": META}


def is_blank(func: Any, args: Sequence[Any]) -> bool:
    """Whether it makes a tensor like another without values, for values that nobody knows."""
    blank = func in (torch.empty_like, _T.new_empty)
    return blank and args[0].is_meta and args[0].is_floating_point()
