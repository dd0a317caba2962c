"""What real ranks exchange in a step of a schedule of ``torch.distributed.pipelining``.

A program of its own, for ``torchrun``: ``pipelined_steps.py SCRIPT WORDS`` runs the script, and
every rank prints as JSON what its last step of a schedule and the update behind it exchanged:
kind, bytes of the whole, how often.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

NAMES = {
    "_allgather_base_": "all_gather", "_reduce_scatter_base_": "reduce_scatter",
    "allreduce_": "all_reduce", "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter", "all_reduce": "all_reduce",
    "send": "send", "recv_": "recv",
}  # fmt: skip


class Exchanged(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts by kind and bytes of the whole."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: Counter[tuple[str, int]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        if any(t.__name__ in {"DTensor", "AsyncCollectiveTensor"} for t in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        space, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if space in {"c10d", "_c10d_functional"} and name in NAMES:
            given = [t for each in (*args[:2], out) for t in tree_leaves(each)]
            size = max(t.nbytes for t in given if isinstance(t, torch.Tensor))
            self.found[NAMES[name], size] += 1
        return out


LAST = Counter[tuple[str, int]]()


def counted(kind: Any) -> None:
    """Steps of a schedule, without what the first of them finds out."""
    real = kind.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Exchanged() as exchanged:
            out = real(self, *args, **kwargs)
        LAST.clear()
        LAST.update(exchanged.found)
        return out

    kind.step = step


def main() -> None:
    for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
        counted(kind)
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    real = dist.destroy_process_group

    def destroy() -> None:
        found = [[*key, n] for key, n in sorted(LAST.items())]
        line = json.dumps({"rank": dist.get_rank(), "found": found})
        os.write(1, f"{line}\n".encode())  # at once: all ranks write here
        real()

    dist.destroy_process_group = destroy
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
