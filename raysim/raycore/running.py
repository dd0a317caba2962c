"""What a body sees of the task it runs; the executor implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from raysim.raycore.resources import Allocation
from raysim.raycore.tasks import Payload, TaskError, TaskSpec, Value

if TYPE_CHECKING:
    from raysim.raycore.process import CoreProcess


class RunningTask(Protocol):
    """One execution of one task, in one worker process.

    ``lead_ns`` everywhere: the program has run ahead of the clock by so much (see ``process``).
    """

    spec: TaskSpec
    args: Sequence[Value]
    """Resolved, in order; errors never get here."""
    resource_ids: Allocation
    """Which instances (GPUs) the lease holds."""
    on_cancel: Callable[[], None] | None
    """Set by a body that can be interrupted; called at most once."""
    ended: bool
    """It has returned, raised or left."""
    state: Any
    """The actor's instance, kept from its creation task; ``running.keep(x)`` sets it."""

    @property
    def worker(self) -> CoreProcess:
        """The process it runs in: submit, get, put and wait through it."""

    def keep(self, instance: Any) -> None:
        """Of a creation task: what later methods find as ``state``."""

    def compute(self, core_s: float, then: Callable[[], object], *, width: float = 1.0) -> None:
        """Use the node's cores: ``width`` threads of ``core_s`` seconds each."""

    def sleep(self, delay_ns: int, then: Callable[[], object]) -> None:
        """Let time pass without using anything."""

    def finish(self, returns: Sequence[Payload] = (), *, lead_ns: int = 0) -> None:
        """Return, one payload per declared return."""

    def fail(self, error: TaskError, *, lead_ns: int = 0) -> None:
        """Raise."""

    def exit_process(self, *, reason: str, intended: bool, lead_ns: int = 0) -> None:
        """``sys.exit``, ``ray.actor.exit_actor`` (intended) or a crash."""

    def yield_item(self, item: Payload, then: Callable[[], object], *, lead_ns: int = 0) -> None:
        """Of a streaming generator: hand over one item; ``then`` when it may go on."""
