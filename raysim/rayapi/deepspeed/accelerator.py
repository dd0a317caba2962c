"""``deepspeed.accelerator``: CUDA's.

Real counterpart: ``accelerator/cuda_accelerator.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from raysim.rayapi.shapes.cpu_work import is_on_cpu


class _Accelerator:
    """What ``torch.cuda`` answers, under DeepSpeed's names."""

    _name = "cuda"
    _communication_backend_name = "nccl"

    def device_name(self, device_index: int | None = None) -> str:
        """``cuda`` or ``cuda:0``."""
        return "cuda" if device_index is None else f"cuda:{device_index}"

    def current_device_name(self) -> str:
        """``cuda:1``, of the GPU it uses."""
        return f"cuda:{torch.cuda.current_device()}"

    def communication_backend_name(self) -> str:
        """``nccl``."""
        return self._communication_backend_name

    def device(self, device_index: int | None = None) -> torch.device:
        """Torch's."""
        return torch.device(self.device_name(device_index))

    def total_memory(self, device_index: int | None = None) -> int:
        """Of a GPU, in bytes."""
        return int(torch.cuda.get_device_properties(device_index).total_memory)

    def available_memory(self, device_index: int | None = None) -> int:
        """Of it, what nobody holds, in bytes."""
        return torch.cuda.mem_get_info(device_index)[0]

    def memory_cached(self, device_index: int | None = None) -> int:
        """What torch calls reserved, in bytes."""
        return torch.cuda.memory_reserved(device_index)

    def max_memory_cached(self, device_index: int | None = None) -> int:
        """And at its peak."""
        return torch.cuda.max_memory_reserved(device_index)

    def is_fp16_supported(self) -> bool:
        """From Volta on."""
        return torch.cuda.get_device_capability()[0] >= 7

    def is_triton_supported(self) -> bool:
        """From Ampere on."""
        return torch.cuda.get_device_capability()[0] >= 8

    def supported_dtypes(self) -> list[torch.dtype]:
        """Of parameters and gradients."""
        fp16 = [torch.half] if self.is_fp16_supported() else []
        bf16 = [torch.bfloat16] if torch.cuda.is_bf16_supported() else []
        return [torch.float, *fp16, *bf16]

    def random(self) -> Any:
        """The module."""
        return torch.random

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on a GPU."""
        return tensor.is_meta and not is_on_cpu((tensor,), {}, makes=False)

    def pin_memory(self, tensor: torch.Tensor, **_align: Any) -> torch.Tensor:
        """A copy in pages that stay."""
        return tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it is one."""
        return tensor.is_pinned()

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        """CUDA is up already."""
        return callback()

    def visible_devices_envs(self) -> list[str]:
        """What names the GPUs of a process."""
        return ["CUDA_VISIBLE_DEVICES"]

    def _no(self) -> bool:
        return False

    is_synchronized_device = use_host_timers = _no
    resolves_data_dependency = handles_memory_backpressure = _no

    def range_push(self, msg: str, **_others: Any) -> None:
        """A range of NVTX, which nobody records."""

    def range_pop(self, **_others: Any) -> None:
        """It ends."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def get_accelerator() -> _Accelerator:
    """``deepspeed.accelerator.get_accelerator``."""
    return _Accelerator()
