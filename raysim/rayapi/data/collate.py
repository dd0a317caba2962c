"""The module ``ray.data.collate_fn``: what makes tensors of batches.

Real counterpart: ``ray/data/collate_fn.py`` and ``util/torch_utils.py`` (2.60). Functions run in
threads of the consumer's process, ahead of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raysim.rayapi.data.columns import Columns, to_batch


class CollateFn:
    """The root."""

    batch_format = "numpy"


class ArrowBatchCollateFn(CollateFn):
    """Gets a ``pyarrow.Table``."""

    batch_format = "pyarrow"


class NumpyBatchCollateFn(CollateFn):
    """Gets a dict of arrays."""


class PandasBatchCollateFn(CollateFn):
    """Gets a ``pandas.DataFrame``."""

    batch_format = "pandas"


class DefaultCollateFn(NumpyBatchCollateFn):
    """A tensor of each column."""

    def __init__(self, dtypes: Any = None, **_options: Any) -> None:
        self.dtypes = dtypes

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """Copies: blocks are nobody's to change."""
        import torch

        def made(name: str, array: Any) -> Any:
            if array.dtype == object:
                array = np.stack([np.asarray(v) for v in array])
            if array.dtype.kind not in "biufc":
                raise TypeError(
                    f"Cannot convert column {name!r} of type {array.dtype} to a torch tensor: "
                    "drop it, or give a collate_fn."
                )
            kind = self.dtypes[name] if isinstance(self.dtypes, dict) else self.dtypes
            tensor = torch.from_numpy(np.array(array))
            return tensor if kind is None else tensor.to(kind)

        return {name: made(name, array) for name, array in batch.items()}


def collated(function: Any, columns: Columns) -> Any:
    """What a ``collate_fn`` makes of rows."""
    return function(to_batch(columns, getattr(function, "batch_format", "numpy")))
