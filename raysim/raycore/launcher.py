"""Starting and ending processes: what a raylet asks of its operating system.

Real counterpart: ``fork``/``exec`` of ``default_worker.py``, SIGTERM and SIGKILL, SIGCHLD.
``cluster`` implements it, since rooms do not know each other's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from raysim.raycore.ids import JobID, NodeID, WorkerID
from raysim.raycore.protocol import WorkerType
from raysim.raycore.tasks import RuntimeEnv


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A worker process to be."""

    node_id: NodeID
    worker_type: WorkerType
    job_id: JobID
    """0: of no job yet."""
    runtime_env: RuntimeEnv | None
    startup_token: int


class ProcessLauncher(Protocol):
    """The operating systems of all nodes."""

    def start(self, spec: ProcessSpec) -> WorkerID:
        """Start a process; it uses its node's cores and registers with its raylet when it is up."""

    def kill(self, worker_id: WorkerID, *, reason: str, intended: bool = False) -> None:
        """Gone at once, wherever it was; its raylet gets ``WorkerExited``.

        SIGKILL from outside, or the process's own exit: then ``intended`` says whether in order.
        """

    def end_processes(self, node_id: NodeID, reason: str) -> None:
        """The raylet process ends by itself, and with it the node's store and every process."""

    def memory_bytes(self, worker_id: WorkerID) -> int:
        """Resident memory of a process, without the object store."""


class NodeProvider(Protocol):
    """The cloud: what the autoscaler asks of it."""

    def launch(self, node_type: str, then: Callable[[NodeID | None], object]) -> None:
        """Start a node of this type.

        ``then(id)`` when the cloud lists the machine (its raylet registers by itself afterwards),
        ``then(None)`` when it cannot be had.
        """

    def machines(self) -> Mapping[NodeID, str]:
        """Every machine that the cloud lists, and its type."""

    def runs(self, node_id: NodeID) -> bool:
        """Whether a machine that is listed has booted."""

    def terminate(self, node_id: NodeID) -> None:
        """Give a machine back."""
