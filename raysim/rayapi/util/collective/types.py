"""``ray.util.collective.types``: names of backends and reductions."""

from __future__ import annotations

from enum import Enum
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


class Backend:
    """``Backend``: called with a name, the backend's."""

    NCCL = "NCCL"
    GLOO = "GLOO"
    UNRECOGNIZED = "unrecognized"

    def __new__(cls, name: str) -> Any:
        """One of the two names.

        Raises
        ------
        ValueError
            Of another backend, as in Ray.
        """
        upper = name.upper()
        if upper not in ("NCCL", "GLOO", "TORCH_GLOO"):
            raise ValueError(f"Unrecognized backend: '{name}'. Only NCCL and GLOO are supported")
        return cls.NCCL if upper == "NCCL" else cls.GLOO


class ReduceOp(Enum):
    """What is made of all ranks' values."""

    SUM = 0
    PRODUCT = 1
    MIN = 2
    MAX = 3


_PAIRS = {
    ReduceOp.SUM: np.add, ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum,
}  # fmt: skip


def reduced(op: ReduceOp, arrays: Sequence[Any]) -> Any:
    """One array of those of all ranks, element by element."""
    with np.errstate(all="ignore"):
        return reduce(_PAIRS[op], arrays)
