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
from pathlib import Path
from typing import Any

import torch.distributed as dist
from exchanging import Exchanged
from torch.distributed.pipelining import schedules

LAST = Counter[tuple[str, int]]()


def counted(kind: Any) -> None:
    """Steps of a schedule, without what the first of them finds out."""
    real = kind.step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        with Exchanged() as exchanged:
            out = real(self, *args, **kwargs)
        LAST.clear()
        LAST.update(exchanged.by_kind)
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
