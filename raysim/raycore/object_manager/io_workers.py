"""The node's spill and restore workers: started on demand, at most four of each.

Real counterpart: ``src/ray/raylet/worker_pool.cc``: ``PopSpillWorker``, ``PopRestoreWorker``,
``PopDeleteWorker``, ``TryStartIOWorkers``. In Ray the raylet's worker pool keeps them; here they
register with the object manager, which alone uses them.

Not modelled: IO workers are never ended for being idle (nor does Ray).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from raysim.kernel.clock import Handle
from raysim.raycore.launcher import ProcessSpec
from raysim.raycore.protocol import RegisterClient
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.raycore.object_manager.object_manager import ObjectManager

IOWorkerType = Literal["SPILL_WORKER", "RESTORE_WORKER"]

Job = Callable[[str], object]
"""What to do with a worker's address; ``push`` it when done."""


class IOWorkers:
    """Workers of one kind."""

    def __init__(self, room: ObjectManager, worker_type: IOWorkerType) -> None:
        self.room = room
        self.worker_type: IOWorkerType = worker_type
        self.idle: list[str] = []
        """The one that was free last comes last, and is taken first: a set's ``begin`` in Ray. One
        of several wrote all files of a driver there (ray 2.60)."""
        self.alive: dict[str, None] = {}
        self.jobs: deque[Job] = deque()
        self.starting: dict[int, Handle] = {}
        self._token = 0

    def pop(self, job: Job) -> None:
        """Have ``job(address)`` called with a worker that is free, now or later."""
        if self.idle:
            job(self.idle.pop())
        else:
            self.jobs.append(job)
            self._start()

    def push(self, address: str) -> None:
        """A worker is free again, unless it has died."""
        if address not in self.alive:
            return
        if self.jobs:
            self.jobs.popleft()(address)
        else:
            self.idle.append(address)

    def registered(self, m: RegisterClient) -> None:
        """A process is up."""
        timer = self.starting.pop(m.startup_token, None)
        if timer is not None:
            self.room.sim.cancel(timer)
        self.alive[m.worker.address] = None
        self.push(m.worker.address)

    def died(self, address: str) -> None:
        """A process has ended; whoever called it is told by the call."""
        if address in self.alive:
            del self.alive[address]
            if address in self.idle:
                self.idle.remove(address)
            self._start()

    def _start(self) -> None:
        """Start as many as wait, but for those idle, within the limit."""
        room = self.room
        config = room.env.config
        room_for = config.max_io_workers - len(self.starting) - len(self.alive)
        for _ in range(min(len(self.jobs) - len(self.idle), room_for)):
            self._token += 1
            self.starting[self._token] = room.after(
                config.worker_register_timeout_seconds * NS_PER_S, self._overdue, self._token
            )
            process = ProcessSpec(
                node_id=room.node_id, worker_type=self.worker_type, job_id=0, runtime_env=None,
                startup_token=self._token,
            )  # fmt: skip
            room.after(0, room.env.launcher.start, process)

    def _overdue(self, token: int) -> None:
        """A process has not come up; start another if still needed."""
        del self.starting[token]
        self._start()
