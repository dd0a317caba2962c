"""``deepspeed.accelerator``: CUDA's.

Real counterpart: ``accelerator/cuda_accelerator.py``.
"""

from __future__ import annotations

from typing import Any

import torch


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

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)


def get_accelerator() -> _Accelerator:
    """``deepspeed.accelerator.get_accelerator``."""
    return _Accelerator()
