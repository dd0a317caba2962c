"""Inside the process of a training script: its optimizer steps are watched, then it is ended."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import sys
import time
import traceback
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from raysim.measure.training_device import listed, sensor

WARM_UP = 6
"""First steps, which are not timed: allocation, choice of algorithms, compilation."""
STEPS = 12
"""Steps timed."""
SECONDS = 8.0
"""When this much has been timed, fewer steps are enough."""
LEAST = 5


class Enough(BaseException):
    """Raised in a script whose steps have all been seen."""


class Watch:
    """Notes each step of the script's first optimizer; ends the script after the last."""

    def __init__(self, *, lists: bool) -> None:
        self.lists = lists
        self.on_gpu = torch.cuda.is_available()
        self.marks: list[Any] = []
        self.found: dict[str, Any] = {}
        self._first: Optimizer | None = None
        self.steps = 0
        self._since_s = 0.0
        self._profile: Any = None

    def __call__(self, optimizer: Optimizer, *_: object) -> None:
        """After a step of any optimizer."""
        self._first = self._first or optimizer
        if optimizer is not self._first:
            return
        self.steps += 1
        if self._profile is not None:
            self._end()
        if self.steps == WARM_UP:
            self._begin()
        if self.steps >= WARM_UP:
            self.marks.append(self._mark())
        timed = len(self.marks) - 1
        long = time.perf_counter() - self._since_s > SECONDS
        if timed >= STEPS or (timed >= LEAST and long):
            self._note()
            if not self.lists:
                raise Enough
            self._profile = profile(activities=self._kinds(), record_shapes=True)
            self._profile.__enter__()

    def ended(self) -> dict[str, Any]:
        """What a script showed that ended by itself."""
        if len(self.marks) - 1 < LEAST:
            return {"error": f"ended after {self.steps} optimizer steps; {NEEDED}"}
        if not self.found:
            self._note()
        return {"operators": [], **self.found}

    def _begin(self) -> None:
        self._since_s = time.perf_counter()
        if self.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

    def _mark(self) -> Any:
        if not self.on_gpu:
            return time.perf_counter()
        new_event: Any = torch.cuda.Event  # untyped
        mark = new_event(enable_timing=True)
        mark.record()
        return mark

    def _kinds(self) -> list[ProfilerActivity]:
        return [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * self.on_gpu

    def _note(self) -> None:
        """All but the operators, of which the next step tells."""
        found = self.found
        found["clock_mhz"], found["power_w"] = sensor("clock_rate"), sensor("power_draw")
        found["peak"] = {}
        if not self.on_gpu:
            found["steps"] = [b - a for a, b in pairwise(self.marks)]
            return
        torch.cuda.synchronize()
        found["steps"] = [a.elapsed_time(b) / 1e3 for a, b in pairwise(self.marks)]
        free, total = torch.cuda.mem_get_info()
        found["peak"] = {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "driver": total - free - torch.cuda.memory_reserved(),
        }

    def _end(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()
        self._profile.__exit__(None, None, None)
        self.found["operators"] = listed(self._profile)
        raise Enough


def watch(
    folder: str, script: str, arguments: list[str], target: Path, *, lists: bool = False
) -> None:
    """Run ``script`` in ``folder`` as ``__main__`` until enough is seen; write what was found.

    Writes ``{steps, peak, clock_mhz, power_w, operators}`` or ``{error}`` to ``target`` and ends
    the process. ``lists``: the operators of one more step, too.
    """
    seen = Watch(lists=lists)
    register_optimizer_step_post_hook(seen)
    # This process comes of a fork server, workers of a script's loaders shall not: theirs is the
    # platform's own way, as after `python SCRIPT`.
    multiprocessing.set_start_method(None, force=True)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
        found = seen.ended()
    except Enough:
        found = {"operators": [], **seen.found}
    except BaseException:  # noqa: BLE001  (whatever ends a script is its answer)
        found = {"error": traceback.format_exc()[-1500:]}
    target.write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # libraries' threads and loaders of the script end with it


NEEDED = f"needed are {WARM_UP} and {LEAST} more"
