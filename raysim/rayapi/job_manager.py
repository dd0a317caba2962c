"""Submitted jobs: their supervisors, their drivers and how they end.

Real counterpart: ``job_manager.py`` and ``job_supervisor.py`` of ``python/ray/dashboard/modules/
job`` (ray 2.60). A job is a detached ``JobSupervisor`` actor, on the head and of no CPUs unless the
entrypoint asks for resources; it starts the entrypoint as a subprocess, looks at it every 0.1 s,
and is ended with it. A supervisor that has not started after 900 s fails its job. What is asked to
stop gets SIGTERM, after three seconds SIGKILL.

A driver here is a fiber with a process of its own; starting one costs what starting a worker does.
A job with its driver on the head fails with the head; with GCS fault tolerance one elsewhere goes
on.

Not modelled: modules of two jobs' folders with one name are one module; commands other than
``python script.py``; the time the dashboard takes to answer beyond the network's.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raysim.rayapi.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.runtime_env import Uploaded
from raysim.rayapi.torch_programs import load_for
from raysim.rayapi.tracebacks import user_traceback
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.rayapi.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from raysim.raycore.ids import NodeID, hex_id
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.session import Session

START_TIMEOUT_S = 900.0
"""``DEFAULT_JOB_START_TIMEOUT_SECONDS``."""
STOP_WAIT_S = 3.0
"""``DEFAULT_RAY_JOB_STOP_WAIT_TIME_S``."""
POLL_S = 0.1
"""``SUBPROCESS_POLL_PERIOD_S``."""
WATCH_S = 1.0
"""A shell beside the driver: ``while kill -s 0 <supervisor>; do sleep 1; done``."""
_KILLED = -9
LOG_LINES = 10
"""``NUM_LOG_LINES_ON_ERROR``."""
NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
TERMINAL = ("STOPPED", "SUCCEEDED", "FAILED")


@dataclass(slots=True, kw_only=True)
class SubmittedJob:
    """What is known of one job (``JobInfo``); times in ns of the run, -1: not yet."""

    submission_id: str
    entrypoint: str
    main: Callable[[], Any]
    """What its driver runs."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    resources: dict[str, Any] = field(default_factory=dict)
    """Of the supervisor, as actor options."""
    status: str = "PENDING"
    message: str = "Job has not started yet."
    error_type: str | None = None
    submitted_ns: int = -1
    started_ns: int = -1
    ended_ns: int = -1
    exit_code: int | None = None
    node_id: NodeID = -1
    log: list[str] = field(default_factory=list)
    error: BaseException | None = None
    """What its driver raised."""
    driver: Fiber | None = None
    stopping: bool = False
    waiters: list[Callable[[Any], object]] = field(default_factory=list)
    """To be told when it has ended."""

    @property
    def job_id(self) -> int | None:
        """Ray's id of its driver's job."""
        core = self.driver.process.core if self.driver is not None else None
        return core.job_id if core is not None else self._job_id

    _job_id: int | None = None


class Program:
    """A script as a process sees it: ``__main__``, ``sys.argv`` and its folder.

    Parameters
    ----------
    argv
        The script's path and its arguments.
    died
        Told when the process is killed.
    """

    __slots__ = ("_argv", "_before", "died", "module")

    def __init__(self, argv: list[str], died: Callable[[str], object]) -> None:
        self.module = ModuleType("__main__")
        self.module.__dict__.update(__file__=argv[0], __builtins__=__builtins__)
        self._argv = argv
        self._before: tuple[ModuleType, list[str]] | None = None
        self.died = died

    def enter(self) -> None:
        """A slice of it begins."""
        self._before = sys.modules["__main__"], sys.argv
        sys.modules["__main__"], sys.argv = self.module, self._argv

    def leave(self) -> None:
        """It waits, or has ended."""
        assert self._before is not None, "a slice begins before it ends"
        sys.modules["__main__"], sys.argv = self._before


class JobSupervisor:
    """The actor of one job."""

    def __init__(self, submission_id: str) -> None:
        fiber = HUB.current
        assert fiber is not None, "an actor runs in a fiber"
        self._manager = manager_of(fiber.process.session)
        self._job = self._manager.jobs[submission_id]

    def ping(self) -> None:
        """It is there."""

    def run(self) -> None:
        """Run the entrypoint to its end."""
        fiber = HUB.current
        assert fiber is not None, "an actor runs in a fiber"
        self._manager.execute(self._job, fiber)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        self._manager.terminate(self._job)


class JobManager:
    """One per session: what the dashboard's job module knows."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.jobs: dict[str, SubmittedJob] = {}
        self._dashboard: ProcessState | None = None
        self._count = 0
        self.is_gone = False
        """With the head."""

    def submit(self, job: SubmittedJob) -> str:
        """Take it on; a supervisor starts in its own time."""
        if job.submission_id in self.jobs:
            raise ValueError(
                f"Job with submission_id {job.submission_id} already exists. "
                "Please use a different submission_id."
            )
        self.jobs[job.submission_id] = job
        job.submitted_ns = self._session.sim.now_ns
        state = self._dashboard
        if state is None:
            state = self._dashboard = ProcessState(self._session, None, is_driver=True)
            state.program = Program(["dashboard"], self._dashboard_died)
        monitor = Fiber(state, None, partial(self._monitor, job), None, "JobManager")
        monitor.depth = 1  # no code of a user's
        self._session.sim.call_later(0, lambda _: monitor.start())
        return job.submission_id

    def new_id(self) -> str:
        """Of a job that was not given one (``generate_job_id``, with a counter for its draw)."""
        self._count += 1
        return f"raysubmit_{self._count:016d}"

    def wait(self, job: SubmittedJob, fiber: Fiber) -> None:
        """Until it has ended."""
        if job.status not in TERMINAL:
            fiber.block(job.waiters.append)

    def stop(self, job: SubmittedJob) -> bool:
        """Whether it could be asked to stop."""
        if job.status in TERMINAL:
            return False
        job.stopping = True
        if job.driver is not None:
            self.terminate(job)
        return True

    # The dashboard's side

    def _monitor(self, job: SubmittedJob) -> None:
        """Start the supervisor and wait for it."""
        from raysim.rayapi import api

        fiber = HUB.current
        assert fiber is not None, "the dashboard's monitors are fibers"
        if fiber.process.core is None:
            self._session.connect(fiber, {"namespace": NAMESPACE})
        where = {}
        if not job.resources:
            head = NodeAffinitySchedulingStrategy(
                hex_id("node", self._session.env.head), soft=False
            )
            where["scheduling_strategy"] = head
        supervisor = (
            api.remote(JobSupervisor)
            .options(
                name=f"_ray_internal_job_actor_{job.submission_id}", lifetime="detached",
                runtime_env=Uploaded(job.runtime_env), max_concurrency=10,
                **{"num_cpus": 0, **where, **job.resources},
            )
            .remote(job.submission_id)
        )  # fmt: skip
        try:
            api.get(supervisor.ping.remote(), timeout=START_TIMEOUT_S)
            self._follow(job, supervisor)
        except GetTimeoutError:
            self._fail(
                job, f"Job supervisor actor failed to start within {START_TIMEOUT_S} seconds.",
                "JOB_SUPERVISOR_ACTOR_START_TIMEOUT",
            )  # fmt: skip
        except ActorDiedError as error:
            message = f"Job supervisor actor died: {error}"
            self._fail(job, message, "JOB_SUPERVISOR_ACTOR_DIED")
        api.kill(supervisor)

    def _follow(self, job: SubmittedJob, supervisor: Any) -> None:
        """Until it has ended; while the GCS is away nobody knows whether the supervisor has died.

        Raises
        ------
        ActorDiedError
            It has.
        """
        from raysim.rayapi import api

        try:
            api.get(supervisor.run.remote())
        except ActorUnavailableError:
            api.get(supervisor.ping.options(max_task_retries=-1).remote())
            fiber = HUB.current
            assert fiber is not None, "the dashboard's monitors are fibers"
            self.wait(job, fiber)

    def _fail(self, job: SubmittedJob, message: str, error_type: str) -> None:
        if job.status not in TERMINAL:
            job.error_type = error_type
            self._put_status(job, "FAILED", message)

    def _dashboard_died(self, reason: str) -> None:
        """The head is gone, and every driver there."""
        self.is_gone = True
        head = self._session.env.head
        for job in self.jobs.values():
            if job.node_id in (-1, head):
                self._fail(job, f"The head node is gone: {reason}", "JOB_SUPERVISOR_ACTOR_DIED")

    def _put_status(self, job: SubmittedJob, status: str, message: str) -> None:
        job.status, job.message = status, message
        if status == "RUNNING":
            job.started_ns = self._session.sim.now_ns
            return
        job.ended_ns = self._session.sim.now_ns
        waiters, job.waiters = job.waiters, []
        for then in waiters:
            then(None)

    # The supervisor's side

    def execute(self, job: SubmittedJob, fiber: Fiber) -> None:
        """Run a job's driver; its status is set when a poll finds that it has ended."""
        assert fiber.running is not None, "a supervisor's method is a task"
        session = self._session
        worker: Any = fiber.running.worker
        job.node_id = worker.me.node_id
        worker.at_exit(partial(self._supervisor_died, job))
        self._put_status(job, "RUNNING", "Job is currently running.")
        started_ns = session.sim.now_ns
        if not job.stopping:
            fiber.block(partial(self._start_driver, job))
        poll_ns = to_ns(POLL_S)
        fiber.sleep(-(session.sim.now_ns - started_ns) % poll_ns)
        driver = job.driver
        if job.stopping:
            self._put_status(job, "STOPPED", "Job was intentionally stopped.")
        elif driver is None or not driver.over or driver.error is not None:
            self._driver_failed(job, driver.error if driver is not None else None)
        else:
            job.exit_code = 0
            self._put_status(job, "SUCCEEDED", "Job finished successfully.")

    def _driver_failed(self, job: SubmittedJob, error: BaseException | None) -> None:
        code = 1 if error is not None else _KILLED
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code == 0:
            job.exit_code = 0
            self._put_status(job, "SUCCEEDED", "Job finished successfully.")
            return
        job.exit_code, job.error = code, error
        if isinstance(error, Exception):
            job.log.append(user_traceback(error) + "\n")
        said = f"Job entrypoint command failed with exit code {code}"
        last = "\n".join("".join(job.log).splitlines()[-LOG_LINES:])
        self._fail(job, f"{said}, last available logs:\n{last}", "JOB_ENTRYPOINT_COMMAND_ERROR")

    def _supervisor_died(self, job: SubmittedJob, _reason: str) -> None:
        """What looks at it every second kills the driver."""
        if job.driver is not None:
            self._session.sim.call_later(to_ns(WATCH_S), _kill, job.driver)

    def _driver_died(self, job: SubmittedJob, ended: Callable[[Any], object], reason: str) -> None:
        """Killed: its supervisor sees that, unless all that could is gone with the head."""
        if self.is_gone:
            self._fail(job, f"Job driver died: {reason}", "JOB_SUPERVISOR_ACTOR_DIED")
        else:
            ended(None)

    def _start_driver(self, job: SubmittedJob, ended: Callable[[Any], object]) -> None:
        session = self._session
        state = ProcessState(session, None, is_driver=True)
        state.home = job.node_id
        state.program = Program(
            shlex.split(job.entrypoint)[1:] or [""], partial(self._driver_died, job, ended)
        )
        state.runtime_env = dict(job.runtime_env)
        state.sink = job.log.append
        for name, value in (job.runtime_env.get("env_vars") or {}).items():
            state.set_env(name, value)
        state.set_env("RAY_ADDRESS", "auto")

        def main() -> Any:
            try:
                return job.main()
            finally:
                if state.core is not None:
                    job._job_id = state.core.job_id  # noqa: SLF001  (a job is this file's own)
                    session.pay_to_the_end(driver)
                    session.disconnect(driver)

        driver = job.driver = Fiber(state, None, main, ended, "driver")
        cost_s = session.env.costs.worker_start_core_s  # an interpreter that imports ray
        session.env.nodes[job.node_id].cpu.job(cost_s, _start, driver, failed=_nobody)

    def terminate(self, job: SubmittedJob) -> None:
        """SIGTERM: ``SystemExit`` where it waits; and SIGKILL to what does not heed it."""
        job.stopping = True
        driver = job.driver
        if driver is None or driver.over:
            return
        session = self._session
        session.sim.call_later(0, lambda _: driver.throw(SystemExit(143)))
        session.sim.call_later(to_ns(STOP_WAIT_S), _kill, driver)


def manager_of(session: Session) -> JobManager:
    """The jobs of a session."""
    if session.submitted is None:
        session.submitted = JobManager(session)
    manager: JobManager = session.submitted
    return manager


def script_main(
    entrypoint: str, folder: Path, source: str | None = None
) -> tuple[str, Callable[[], Any]]:
    """What a shell would run for ``python script.py --args``, without leading assignments.

    ``source`` is the script's text, if it is not in its file.

    Raises
    ------
    NotEmulatedError
        It is another command.
    FileNotFoundError
        There is no such script.
    """
    words = shlex.split(entrypoint)
    while words and "=" in words[0] and not words[0].startswith("-"):
        words.pop(0)
    command = words.pop(0) if words else ""
    while words and words[0] in ("-u", "-B", "-O"):
        words.pop(0)
    if not Path(command).name.startswith("python") or not words or words[0].startswith("-"):
        raise NotEmulatedError(f"entrypoint {entrypoint!r}", "python script.py")
    file = Path(words[0])
    file = file if file.is_absolute() else folder / file
    text = file.read_text(encoding="utf-8") if source is None else source
    code = compile(text, str(file), "exec")
    load_for(text, file.parent)

    def main() -> None:
        fiber = HUB.current
        assert fiber is not None, "a driver is a fiber"
        parent = str(file.parent.resolve())
        if parent not in sys.path:
            sys.path.insert(0, parent)
        fiber.process.program.module.__file__ = str(file)
        exec(code, fiber.process.program.module.__dict__)  # noqa: S102  (what running means)

    return shlex.join(["python", str(file), *words[1:]]), main


def _start(driver: Fiber) -> None:
    driver.start()


def _kill(driver: Fiber) -> None:
    core: Any = driver.process.core
    if not driver.over and core is not None:
        core.env.launcher.kill(core.me.worker_id, reason="killed by SIGKILL")


def _nobody(_driver: Any, _cause: Any) -> None:
    """The node is gone, and the supervisor with it."""
