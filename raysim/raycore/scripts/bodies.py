"""Bodies of tasks: constants, sleeps, computations.

Real counterpart: the user's Python functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import Body, Payload, RemoteFunction, TaskError


def no_op(running: RunningTask) -> None:
    """``def f(): pass``."""
    running.finish()


class Sleep:
    """``time.sleep``."""

    def __init__(self, delay_ns: int) -> None:
        self.delay_ns = delay_ns

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        running.on_cancel = _Cancelled(running)
        running.sleep(self.delay_ns, _Finish(running))


class Compute:
    """Use the node's cores."""

    def __init__(self, core_s: float, width: float = 1.0) -> None:
        self.core_s = core_s
        self.width = width

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        running.on_cancel = _Cancelled(running)
        running.compute(self.core_s, _Finish(running), width=self.width)


class Return:
    """Return values of these sizes, after some time on a core."""

    def __init__(self, sizes_bytes: Sequence[int], core_s: float = 0.0) -> None:
        self.payloads = [Payload(n) for n in sizes_bytes]
        self.core_s = core_s

    def __call__(self, running: RunningTask) -> None:
        """Run."""
        if self.core_s:
            running.on_cancel = _Cancelled(running)
            running.compute(self.core_s, _Finish(running, self.payloads))
        else:
            running.finish(self.payloads)


def function(body: Body, name: str = "") -> RemoteFunction:
    """A remote function of this body."""
    instant: tuple[Payload, ...] | None = None
    if body is no_op:
        instant = ()
    elif isinstance(body, Return) and not body.core_s:
        instant = tuple(body.payloads)
    return RemoteFunction(
        name=name or getattr(body, "__name__", type(body).__name__), body=body, instant=instant
    )


class _Finish:
    """Ends a task, unless it was cancelled first."""

    __slots__ = ("payloads", "running")

    def __init__(self, running: RunningTask, payloads: Sequence[Payload] = ()) -> None:
        self.running = running
        self.payloads = payloads

    def __call__(self) -> None:
        if self.running.on_cancel is not None:
            self.running.on_cancel = None
            self.running.finish(self.payloads)


class _Cancelled:
    """Ends a task that is cancelled."""

    __slots__ = ("running",)

    def __init__(self, running: RunningTask) -> None:
        self.running = running

    def __call__(self) -> None:
        self.running.on_cancel = None
        self.running.fail(TaskError("TASK_CANCELLED"))
