"""What scripts watch their GPU with: events, the profiler, NVTX, the allocator's history.

Real counterparts: ``torch.cuda.Event``, ``torch.profiler``, ``torch.cuda.nvtx``,
``torch.cuda.memory``. Events have virtual times. The others run and record nothing, which is said
once, with what raysim writes in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.profiler
from torch.autograd.profiler_util import EventList

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns

if TYPE_CHECKING:
    from raysim.rayapi.shapes.patches import Replaced
    from raysim.rayapi.shapes.steps import Steps

_PROFILER = (
    "torch.profiler records nothing and writes no file: the report's trace (trace.pftrace) has the "
    "operations of a step"
)
_HISTORY = (
    "the allocator's history is empty: `raysim run --memory-snapshot` writes that of a training "
    "job for https://pytorch.org/memory_viz"
)
_SILENT = ("add_metadata", "add_metadata_json", "preset_metadata_json", "toggle_collection_dynamic")
_EXPORTS = ("export_chrome_trace", "export_memory_timeline", "export_stacks")


class Event:
    """``torch.cuda.Event``: when the GPU gets to where it was recorded."""

    def __init__(self, steps: Steps, *_args: Any, **_kwargs: Any) -> None:
        self._steps = steps
        self._at_ns: int | None = None

    def record(self, stream: Any = None) -> None:  # noqa: ARG002  (there is one)
        """Behind all that is queued."""
        self._at_ns = fiber_ns(this_fiber()) + self._steps.waits_ns

    def synchronize(self) -> None:
        """Wait for it, and for what was queued behind it."""
        self._steps.synchronize()

    def wait(self, stream: Any = None) -> None:
        """Other work does, of the same stream."""

    def query(self) -> bool:
        """Whether the GPU is past it."""
        return self._at_ns is None or self._at_ns <= fiber_ns(this_fiber())

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this one to another.

        Raises
        ------
        RuntimeError
            One of them has not been recorded.
        """
        if self._at_ns is None or end._at_ns is None:
            raise RuntimeError(
                "Both events must be recorded before calculating elapsed time."
            )  # torch's words
        return (end._at_ns - self._at_ns) / 1e6


def install(r: Replaced) -> None:
    """Events, profiler, ranges and history of training workers."""
    r.call(torch.cuda, "Event", Event)
    for name in ("range_push", "range_pop", "mark", "range_start", "range_end"):
        r.call(torch.cuda.nvtx, name, _nothing)
    r.call(torch.cuda, "cudart", lambda _: _CUDART)
    for name in ("start", "stop"):
        r.call(torch.cuda.profiler, name, _nothing)
    for name in ("_record_memory_history", "_dump_snapshot"):
        r.call(torch.cuda.memory, name, lambda s, *_a, **_k: s.say(_HISTORY))
    r.call(torch.cuda.memory, "_snapshot", _snapshot)
    profiler: Any = torch.profiler.profile
    r.around(profiler, "start", lambda _real, steps, *_: steps.say(_PROFILER))
    r.around(profiler, "stop", _nothing)
    r.around(profiler, "step", _step)
    old: Any = torch.autograd.profiler.profile
    r.around(old, "__enter__", _entered)
    r.around(old, "__exit__", _nothing)
    base = profiler.__mro__[1]
    for name in (*_SILENT, *_EXPORTS):
        r.around(base, name, _nothing)
    for name in ("key_averages", "events"):
        r.around(base, name, _no_events)


_CUDART = SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Recorded."""


def _entered(_real: Callable[..., Any], steps: Steps, profiler: Any) -> Any:
    """``torch.autograd.profiler``, whose tracer of Python knows no fibers: it ends the process."""
    steps.say(_PROFILER)
    return profiler


def _no_events(*_args: Any, **_kwargs: Any) -> EventList:
    none: EventList = EventList()  # type: ignore[no-untyped-call]
    return none


def _step(_real: Callable[..., Any], _steps: Steps, profiler: Any) -> None:
    """``prof.step()``: what the schedule says next is not done either."""
    profiler.step_num += 1
    profiler.current_action = profiler.schedule(profiler.step_num)


def _snapshot(steps: Steps, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
    steps.say(_HISTORY)
    return {"segments": [], "device_traces": [], "allocator_settings": {}}
