"""``torchvision.utils``: pictures are neither drawn nor written.

Real counterpart: ``torchvision/utils.py``.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.28.0"


def make_grid(tensor: Any, nrow: int = 8, padding: int = 2, **_: Any) -> Any:
    """One picture of several."""
    pictures = tensor if hasattr(tensor, "shape") else tensor[0].unsqueeze(0)
    if pictures.dim() < 4:
        return pictures
    many, channels, height, width = pictures.shape
    across = min(nrow, many)
    down = -(-many // across)
    return pictures.new_zeros(
        max(channels, 3), down * (height + padding) + padding, across * (width + padding) + padding
    )


def save_image(*_: Any, **__: Any) -> None:
    """Nothing is written."""
