"""``multiprocessing.Process`` in training scripts, and what ranks share that are one process here.

Real counterparts: ``multiprocessing/process.py``, which ``torch.multiprocessing`` has too; Python's
garbage collector.
Processes whose target is the script's own begin together, when the first of them is waited for, as
children of ``torch.multiprocessing.spawn`` do; those of packages (pools, environments) are this
machine's.

Not modelled: what a parent does meanwhile; queues and pipes between processes.
"""

from __future__ import annotations

import gc
import multiprocessing.process
import sysconfig
from typing import TYPE_CHECKING, Any

from raysim.rayapi.shapes.here import worker_here

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.train.worker import Call, Worker

_PACKAGES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib"))


def install(r: Replaced) -> None:
    """Of the scripts' own."""
    r.around(multiprocessing.process.BaseProcess, "start", _start, worker_here)
    r.around(gc, "collect", _collect, worker_here)


def _collect(real: Any, worker: Worker, generation: int = 2) -> int:
    """Rank 0's look at everything finds the garbage of all; others look at what is new.

    Each would else look at all ranks' objects, seconds for each of 32 ranks of a large model.
    """
    found: int = real(generation if worker.context.rank == 0 else min(generation, 1))
    return found


class _Child:
    """What ``Process`` asks of the process that it stands for."""

    pid = sentinel = 0

    def __init__(self, worker: Worker, call: Call) -> None:
        self.worker, self.call = worker, call
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int | None:
        """Until it has ended."""
        del timeout
        self.worker.run_children()
        return self.returncode

    poll = wait

    def terminate(self) -> None:
        """It has ended, or never begins."""

    kill = close = terminate


def _start(real: Any, worker: Worker, process: Any) -> None:
    """``Process.start``."""
    target = process._target  # noqa: SLF001  (subclasses have none)
    code = getattr(target, "__code__", None)
    if worker.run.spawn is None or code is None or code.co_filename.startswith(_PACKAGES):
        real(process)
        return
    child = _Child(worker, (target, process._args, process._kwargs))  # noqa: SLF001
    process._popen = child  # noqa: SLF001
    worker.children.append(child)
