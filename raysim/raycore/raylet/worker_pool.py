"""The worker processes of one node: starting, matching, keeping and ending them.

Real counterpart: ``src/ray/raylet/worker_pool.cc``. A lease takes the most recently idle worker
that matches; else a process is started for it, at most so many at once, and whichever matching
worker comes first, started or returned, goes to the request that has waited longest. Every request
of a task, also one that will be sent on to another node, has workers started ahead as well, up to
its owner's backlog and the CPUs that are free.

A process that is asked to leave and may not (it owns objects) comes back as idle. The 200 ms look
at idle workers is made only when one of them could be over the limit.

Not modelled: workers of other languages, worker processes with options of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from raysim.kernel.clock import Handle
from raysim.kernel.component import Component, Failure
from raysim.raycore.ids import ActorID, JobID, NodeID, WorkerAddress, WorkerID
from raysim.raycore.launcher import ProcessSpec
from raysim.raycore.protocol import ExitWorker, WorkerType
from raysim.raycore.raylet.lease import Lease
from raysim.raycore.resources import CPU, UNIT, NodeResources
from raysim.raycore.room import Surroundings
from raysim.raycore.tasks import RuntimeEnv
from raysim.units import NS_PER_S

NS_PER_MS = 1_000_000

StartFailure = str
"""Empty: the process did not come up in time; else why its runtime env could not be made."""


class Worker:
    """A registered process."""

    __slots__ = (
        "actor_id", "address", "exiting", "idle_since_ns", "job_id", "lease",
        "root_detached_actor_id", "runtime_env_key", "used", "worker_id", "worker_type",
    )  # fmt: skip

    def __init__(
        self, address: WorkerAddress, worker_type: WorkerType, job_id: JobID, env_key: str
    ) -> None:
        self.worker_id = address.worker_id
        self.address = address
        self.worker_type = worker_type
        self.job_id = job_id
        """0: of no job yet; of one for life."""
        self.runtime_env_key = env_key
        self.root_detached_actor_id: ActorID = 0
        self.actor_id: ActorID = 0
        self.lease: Lease | None = None
        self.idle_since_ns = 0
        self.used = False
        self.exiting = False


class Start:
    """A process that has been started and has not registered yet, or waits to be started."""

    __slots__ = ("env", "job_id", "lease", "prestarted", "timer", "worker_id")

    def __init__(self, job_id: JobID, env: RuntimeEnv | None, lease: Lease | None) -> None:
        self.job_id = job_id
        self.env = env
        self.lease = lease
        """For whom; None: for whoever comes."""
        self.prestarted = False
        self.worker_id: WorkerID = 0
        self.timer: Handle | None = None


class WorkerPool:
    """All processes of a node that run tasks.

    Parameters
    ----------
    came, failed
        ``came(lease, worker)`` when a pending request has its worker, ``failed(lease, failure)``.
    """

    def __init__(
        self,
        room: Component,
        env: Surroundings,
        node_id: NodeID,
        resources: NodeResources,
        *,
        came: Callable[[Lease, Worker], object],
        failed: Callable[[Lease, StartFailure], object],
    ) -> None:
        self._room = room
        self._env = env
        self._clock = env.sim.clock
        self._node_id = node_id
        self._resources = resources
        self._came = came
        self._failed = failed
        self._epoch_ns = room.sim.now_ns
        cpus = resources.total.get(CPU, 0) // UNIT
        cores = env.nodes[node_id].spec.vcpus if node_id < len(env.nodes) else cpus
        self.startup_concurrency = env.config.worker_maximum_startup_concurrency or max(
            1, min(int(cores), cpus)
        )
        self.cpus = cpus
        self.workers: dict[WorkerID, Worker] = {}
        """Registered and alive, IO workers apart."""
        self.idle: list[Worker] = []
        """Longest idle first."""
        self.pending: dict[int, Lease] = {}
        """Requests that wait for a worker, longest first."""
        self.starting: dict[WorkerID, Start] = {}
        self._to_start: deque[Start] | None = None
        self._environments: dict[str, list[Start] | None] = {}
        """Being made, with who waits; None: there."""
        self._finished_jobs: dict[JobID, None] = {}
        self._tick: Handle | None = None
        self._tokens = 0
        self._first_driver = True
        self._prestarting = 0
        self._driver_waits: Callable[[], object] | None = None

    # Leases take and give back workers

    def pop(self, lease: Lease) -> Worker | None:
        """The best idle worker; None: one will come, or fail to."""
        idle = self.idle
        for index in range(len(idle) - 1, -1, -1):
            worker = idle[index]
            if self._suits(worker, lease):
                del idle[index]
                self._take(worker, lease)
                return worker
        self.pending[lease.lease_id] = lease
        self._want(Start(lease.spec.job_id, lease.spec.options.runtime_env, lease))
        return None

    def push(self, worker: Worker) -> None:
        """A worker is free: for the longest waiting request that it suits, or to be kept."""
        worker.lease = None
        worker.idle_since_ns = self._clock.now
        for lease in self.pending.values():
            if self._suits(worker, lease):
                self._serve(lease, worker)
                return
        self.idle.append(worker)
        if worker.job_id in self._finished_jobs:
            self._ask_to_leave(worker, force=True)
            return
        if self._env.log.enabled:
            self._note(worker, "IDLE")
        if self._tick is None:
            self.look_at_idle()

    def forget(self, lease: Lease) -> None:
        """A request does not wait any more; the process started for it will be idle."""
        self.pending.pop(lease.lease_id, None)
        start, lease.start = lease.start, None
        if start is not None:
            start.lease = None
            if start.worker_id == 0 and not start.prestarted:
                self._unwant(start)

    def _suits(self, worker: Worker, lease: Lease) -> bool:
        spec = lease.spec
        env = spec.options.runtime_env
        return (
            worker.job_id in (spec.job_id, 0)
            and worker.runtime_env_key == (env.key if env is not None else "")
            and (not worker.used or worker.root_detached_actor_id == spec.root_detached_actor_id)
            and not worker.exiting
        )

    def _take(self, worker: Worker, lease: Lease) -> None:
        worker.used = True
        worker.lease = lease
        worker.job_id = lease.spec.job_id
        worker.root_detached_actor_id = lease.spec.root_detached_actor_id

    def _serve(self, lease: Lease, worker: Worker) -> None:
        """Give a worker to a pending request, and its process to come to whom it was meant for."""
        del self.pending[lease.lease_id]
        start, lease.start = lease.start, None
        if start is not None:
            start.lease = None
            if start.worker_id == 0 and not start.prestarted:
                self._unwant(start)
        self._take(worker, lease)
        self._came(lease, worker)

    # Starting

    def prestart(self, count: int, job_id: JobID = 0, env: RuntimeEnv | None = None) -> None:
        """Start workers that nobody has asked for yet, as many as may start at once and no more.

        Those beyond are not put off: Ray tries them once (``PrestartWorkersInternal``).
        """
        for _ in range(count):
            start = Start(job_id, env, None)
            start.prestarted = True
            self._want(start)

    def prestart_up_to(self, count: int, job_id: JobID, env: RuntimeEnv | None) -> None:
        """So that as many are idle or starting (``PrestartWorkers``)."""
        self.prestart(count - len(self.idle) - len(self.starting), job_id, env)

    def driver_came(self, job_id: JobID, then: Callable[[], object]) -> None:
        """Of the first driver: start workers, and answer it when the first of them are up."""
        config = self._env.config
        first, self._first_driver = self._first_driver, False
        if not first or not config.prestart_worker_first_driver or config.enable_worker_prestart:
            then()
            return
        self.prestart(self.cpus, job_id)
        if self._prestarting:
            self._driver_waits = then
            self._prestarting = min(self.cpus, self.startup_concurrency)
        else:
            then()

    def _want(self, start: Start) -> None:
        """Make the environment if need be, then queue the process."""
        if start.lease is not None:
            start.lease.start = start
        env = start.env
        if env is None or (not env.setup_s and not env.error):
            self._queue(start)
            return
        if env.key in self._environments:
            waiting = self._environments[env.key]
            if waiting is None:
                self._queue(start)
            else:
                waiting.append(start)
            return
        self._environments[env.key] = [start]
        self._room.after(round(env.setup_s * NS_PER_S), self._environment_made, env)

    def _environment_made(self, env: RuntimeEnv) -> None:
        waiting = self._environments.pop(env.key) or []
        if not env.error:
            self._environments[env.key] = None
        for start in waiting:
            if not env.error:
                self._queue(start)
            elif start.lease is not None:
                lease = start.lease
                self.forget(lease)
                self._failed(lease, env.error)

    def _queue(self, start: Start) -> None:
        if self._to_start is None:
            self._to_start = deque()
        if start.prestarted:
            if len(self.starting) >= self.startup_concurrency:
                return
            self._prestarting += 1
        elif start.lease is None:
            return  # its request was served or cancelled while the environment was made
        self._to_start.append(start)
        self._start_next()

    def _unwant(self, start: Start) -> None:
        """Do not start it after all."""
        if self._to_start is not None and start in self._to_start:
            self._to_start.remove(start)

    def _start_next(self) -> None:
        queue = self._to_start
        while queue and len(self.starting) < self.startup_concurrency:
            start = queue.popleft()
            self._tokens += 1
            start.worker_id = self._env.launcher.start(
                ProcessSpec(
                    node_id=self._node_id, worker_type="WORKER", job_id=start.job_id,
                    runtime_env=start.env, startup_token=self._tokens,
                )
            )  # fmt: skip
            self.starting[start.worker_id] = start
            start.timer = self._room.after(
                self._env.config.worker_register_timeout_seconds * NS_PER_S, self._too_late, start
            )
            if self._env.log.enabled:
                self._env.log.note("worker", start.worker_id, "STARTING", self._room.sim.now_ns,
                                   node_id=self._node_id, worker_id=start.worker_id)  # fmt: skip

    def registered(
        self, address: WorkerAddress, worker_type: WorkerType, job_id: JobID, env_key: str
    ) -> Worker | None:
        """A process has come up; None if nobody waits for it any more: it must go."""
        worker = Worker(address, worker_type, job_id, env_key)
        if worker_type == "WORKER":
            start = self.starting.pop(address.worker_id, None)
            if start is None:
                return None
            if start.timer is not None:
                self._env.sim.cancel(start.timer)
            self.workers[worker.worker_id] = worker
            if start.lease is not None:
                self._hand_over(start, worker)
            self.push(worker)
            if start.prestarted:
                self._one_prestarted()
            self._start_next()
        else:
            self.workers[worker.worker_id] = worker
        return worker

    def _hand_over(self, start: Start, worker: Worker) -> None:
        """If the worker will serve an earlier request, leave that one's process to ours."""
        lease = start.lease
        assert lease is not None
        lease.start = None
        start.lease = None
        for other in self.pending.values():
            if self._suits(worker, other):
                if other is not lease and other.start is not None:
                    lease.start, other.start = other.start, None
                    lease.start.lease = lease
                return

    def _one_prestarted(self) -> None:
        self._prestarting -= 1
        if self._prestarting <= 0 and self._driver_waits is not None:
            then, self._driver_waits = self._driver_waits, None
            then()

    def _too_late(self, start: Start) -> None:
        worker_id = start.worker_id
        self._start_failed(start)
        self._env.launcher.kill(worker_id, reason="registration timed out")

    def _start_failed(self, start: Start) -> None:
        del self.starting[start.worker_id]
        lease = start.lease
        if start.prestarted:
            self._one_prestarted()
        if lease is not None:
            self.forget(lease)
            self._failed(lease, "")
        self._start_next()

    def lease_of(self, worker_id: WorkerID) -> Lease | None:
        """What a process is leased for."""
        worker = self.workers.get(worker_id)
        return worker.lease if worker is not None else None

    # Ending

    def exited(self, worker_id: WorkerID) -> Worker | None:
        """A process has ended; the worker it was, if it had registered."""
        start = self.starting.get(worker_id)
        if start is not None:
            if start.timer is not None:
                self._env.sim.cancel(start.timer)
            self._start_failed(start)
            return None
        worker = self.workers.pop(worker_id, None)
        if worker is not None and worker in self.idle:
            self.idle.remove(worker)
        return worker

    def job_finished(self, job_id: JobID) -> None:
        """Its idle workers leave now; those that come back later, when they do."""
        self._finished_jobs[job_id] = None
        for worker in [w for w in self.idle if w.job_id == job_id]:
            self._ask_to_leave(worker, force=True)

    def look_at_idle(self) -> None:
        """Arm the look at idle workers if one of them can be over the limit."""
        if self._tick is not None or not self.idle:
            return
        config = self._env.config
        limit = self._soft_limit()
        if len(self.idle) <= limit:
            return
        period_ns = config.kill_idle_workers_interval_ms * NS_PER_MS
        threshold_ns = config.idle_worker_killing_time_threshold_ms * NS_PER_MS
        now_ns = self._room.sim.now_ns
        due_ns = max(now_ns + 1, self.idle[limit].idle_since_ns + threshold_ns)
        ticks = -(-(due_ns - self._epoch_ns) // period_ns)
        self._tick = self._room.after(
            self._epoch_ns + ticks * period_ns - now_ns, self._kill_idle, None
        )

    def _soft_limit(self) -> int:
        limit = self._env.config.num_workers_soft_limit
        return limit if limit >= 0 else max(0, self._resources.available.get(CPU, 0) // UNIT)

    def _kill_idle(self, _: object) -> None:
        self._tick = None
        threshold_ns = self._env.config.idle_worker_killing_time_threshold_ms * NS_PER_MS
        since_ns = self._room.sim.now_ns - threshold_ns
        killable = [w for w in self.idle if w.idle_since_ns <= since_ns]
        excess = len(killable) - self._soft_limit()
        if excess > 0:
            killable.sort(key=_never_used_first)
            for worker in killable[:excess]:
                self._ask_to_leave(worker, force=False)
        self.look_at_idle()

    def _ask_to_leave(self, worker: Worker, *, force: bool) -> None:
        self.idle.remove(worker)
        worker.exiting = True

        def answered(leaves: Any) -> None:
            if leaves is False and not isinstance(leaves, Failure):
                worker.exiting = False
                if worker.worker_id in self.workers:
                    self.push(worker)

        reason = "job finished" if force else "idle"
        self._room.call(worker.address.address, ExitWorker(force, reason), answered)

    def _note(self, worker: Worker, state: str) -> None:
        self._env.log.note("worker", worker.worker_id, state, self._room.sim.now_ns,
                           node_id=self._node_id, worker_id=worker.worker_id)  # fmt: skip


def _never_used_first(worker: Worker) -> tuple[bool, int]:
    return worker.used, worker.idle_since_ns
