"""What real torch exchanges, heard from within: for programs of this folder, run by their paths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = {
    "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce", "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce",
    "send": "send", "recv_": "recv", "alltoall_base_": "all_to_all",
}  # fmt: skip


class Exchanged(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by torch's library (``c10d``, ``_c10d_functional``), kind and bytes of the whole."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[tuple[str, str, int]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if any(t.__name__ in {"DTensor", "AsyncCollectiveTensor"} for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        space, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if space == "deepspeed":  # an operator around one of torch's
            space, name = "c10d", name.replace("dim_zero_all_to_all", "alltoall_base_")
        if space in {"c10d", "_c10d_functional"} and name in NAMES:
            given = [t for each in (*args[:2], out) for t in tree_leaves(each)]
            size = max(t.nbytes for t in given if isinstance(t, torch.Tensor))
            self.found[space, NAMES[name], size] += 1
        return out

    @property
    def by_kind(self) -> Counter[tuple[str, int]]:
        """Of either library."""
        found: Counter[tuple[str, int]] = Counter()
        for (_, kind, size), times in self.found.items():
            found[kind, size] += times
        return found
