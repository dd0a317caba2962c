"""Which memory a tensor lies in, also where there is none."""

from __future__ import annotations

import torch


def key_of(tensor: torch.Tensor) -> int:
    """Identity of its storage, as long as that lives: on meta it has no address."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (it has no other)
