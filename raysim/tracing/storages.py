"""Which memory a tensor lies in, also where there is none."""

from __future__ import annotations

import torch

PLAIN = (torch.Tensor, torch.nn.Parameter)
_INNER = ("_local_tensor", "elem")
"""Of a ``DTensor``, this rank's part; of what a collective makes, the tensor that will be there."""


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of one that is spread over ranks, or under way; a sparse one's rows."""
    while type(tensor) not in PLAIN:
        inner = next((v for n in _INNER if (v := getattr(tensor, n, None)) is not None), None)
        if not isinstance(inner, torch.Tensor):
            break
        tensor = inner
    return tensor._values() if tensor.is_sparse else tensor  # noqa: SLF001  (there is no other)


def key_of(tensor: torch.Tensor) -> int:
    """Identity of its storage, as long as that lives: on meta it has no address."""
    return int(local_part(tensor).untyped_storage()._cdata)  # noqa: SLF001  (it has no other)


def bytes_of(tensor: torch.Tensor) -> int:
    """Of the storage that its part lies in, whole."""
    return local_part(tensor).untyped_storage().nbytes()


def is_spread(model: torch.nn.Module) -> bool:
    """Whether ranks share its parameters."""
    return any(local_part(p) is not p for p in model.parameters())


def is_placed(tensor: torch.Tensor) -> bool:
    """Whether ranks have parts of it."""
    return type(tensor) not in PLAIN and hasattr(tensor, "placements")
