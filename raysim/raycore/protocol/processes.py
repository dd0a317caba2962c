"""A process and its own raylet (Unix socket, ``raylet_ipc_client``)."""

from __future__ import annotations

from typing import Literal, NamedTuple

from raysim.raycore.ids import ActorID, JobID, LeaseID, WorkerAddress, WorkerID
from raysim.raycore.protocol.addresses import SMALL_BYTES

WorkerType = Literal["WORKER", "DRIVER", "SPILL_WORKER", "RESTORE_WORKER"]


class RegisterClient(NamedTuple):
    """A process has started; of a driver, answered when the first prestarted workers are up."""

    worker: WorkerAddress
    worker_type: WorkerType
    job_id: JobID
    runtime_env_key: str = ""
    startup_token: int = 0
    """Which start this is, of those the pool asked for."""
    size_bytes: int = SMALL_BYTES


class DisconnectClient(NamedTuple):
    """A process says goodbye before it exits. One way."""

    worker_id: WorkerID
    reason: str = ""
    intended: bool = True
    owed: WorkerAddress | None = None
    """Itself, if raylets still owe it answers: they shall hear that nobody waits for these."""
    size_bytes: int = SMALL_BYTES


class NotifyWorkerBlocked(NamedTuple):
    """A task waits in get or wait: its CPU is free for others. One way."""

    worker_id: WorkerID
    size_bytes: int = SMALL_BYTES


class NotifyWorkerUnblocked(NamedTuple):
    """It goes on. One way."""

    worker_id: WorkerID
    size_bytes: int = SMALL_BYTES


class ActorCreationTaskDone(NamedTuple):
    """The worker is an actor's from now on, with what its lease holds. One way."""

    worker_id: WorkerID
    actor_id: ActorID
    size_bytes: int = SMALL_BYTES


class ExitWorker(NamedTuple):
    """Raylet or GCS -> worker: leave; answered with False if it may not (it owns objects)."""

    force: bool = False
    reason: str = ""
    size_bytes: int = SMALL_BYTES


class WorkerExited(NamedTuple):
    """The launcher -> raylet.

    A process of this node has ended (what SIGCHLD and the closed socket tell). One way, instant.
    """

    worker: WorkerAddress
    reason: str
    intended: bool
    size_bytes: int = 0


class GetWorkerFailureCause(NamedTuple):
    """Owner -> raylet, after a failed push: why.

    Answered with a ``TaskError`` or None, and whether the failure counts against retries (an OOM
    kill has its own count, preemption none).
    """

    lease_id: LeaseID
    size_bytes: int = SMALL_BYTES


OUT_OF_MEMORY_EXIT = "OUT_OF_MEMORY: "
"""How the reason of a worker's death begins that the memory monitor ended (``WorkerExitType``)."""


class MemoryChanged(NamedTuple):
    """A process -> its raylet: its resident memory is another than before. One way, instant.

    Stands for the memory monitor's reading of /proc, which costs nothing while nothing changes.
    """

    worker_id: WorkerID
    size_bytes: int = 0
