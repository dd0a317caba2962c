"""``ray.job_submission``: submitting jobs to the emulated cluster.

Real counterpart: ``python/ray/dashboard/modules/job/sdk.py`` and ``common.py`` of ray 2.60. A call
is an HTTP request to the dashboard on the head; it takes what two messages take here.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import program_call
from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.job_manager import JobManager, SubmittedJob, manager_of, script_main
from raysim.rayapi.runtime_env import validate
from raysim.rayapi.unsupported import getattr_of
from raysim.raycore.ids import hex_id


class JobStatus(StrEnum):
    """Where a job is in its life."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"

    def is_terminal(self) -> bool:
        """Whether it stays as it is."""
        return self.value in {"STOPPED", "SUCCEEDED", "FAILED"}


class JobErrorType(StrEnum):
    """Why a job has failed."""

    RUNTIME_ENV_SETUP_FAILURE = "RUNTIME_ENV_SETUP_FAILURE"
    JOB_SUPERVISOR_ACTOR_START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
    JOB_SUPERVISOR_ACTOR_DIED = "JOB_SUPERVISOR_ACTOR_DIED"
    JOB_ENTRYPOINT_COMMAND_ERROR = "JOB_ENTRYPOINT_COMMAND_ERROR"


class JobType(StrEnum):
    """How a job came to be."""

    SUBMISSION = "SUBMISSION"
    DRIVER = "DRIVER"


@dataclass
class JobDetails:
    """What there is to know of a job; times are Unix milliseconds."""

    type: JobType
    submission_id: str
    status: JobStatus
    entrypoint: str
    job_id: str | None = None
    message: str | None = None
    error_type: str | None = None
    start_time: int | None = None
    end_time: int | None = None
    metadata: dict[str, str] | None = None
    runtime_env: dict[str, Any] | None = None
    driver_node_id: str | None = None
    driver_exit_code: int | None = None


JobInfo = JobDetails


class JobSubmissionClient:
    """A client of the cluster's job server.

    Parameters
    ----------
    address
        Not looked at: there is one cluster.
    create_cluster_if_needed, cookies, metadata, headers, verify
        As Ray takes them; without effect.
    """

    def __init__(
        self,
        address: str | None = None,
        create_cluster_if_needed: bool = False,
        cookies: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        headers: dict[str, Any] | None = None,
        verify: str | bool | None = True,
    ) -> None:
        del address, create_cluster_if_needed, cookies, headers, verify
        self._default_metadata: dict[str, str] = dict(metadata or {})

    @program_call
    def submit_job(
        self,
        *,
        entrypoint: str,
        job_id: str | None = None,
        runtime_env: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        submission_id: str | None = None,
        entrypoint_num_cpus: float | None = None,
        entrypoint_num_gpus: float | None = None,
        entrypoint_memory: int | None = None,
        entrypoint_resources: dict[str, float] | None = None,
        entrypoint_label_selector: dict[str, str] | None = None,
    ) -> str:
        """Submit a job; its submission id, at once."""
        _, manager = _request()
        env = dict(runtime_env or {})
        validate(env)
        folder = Path(str(env.get("working_dir") or ".")).resolve()
        command, main = script_main(entrypoint, folder)
        env |= _assignments(entrypoint, env)
        asked = {
            "num_cpus": entrypoint_num_cpus, "num_gpus": entrypoint_num_gpus,
            "memory": entrypoint_memory, "resources": entrypoint_resources,
            "label_selector": entrypoint_label_selector,
        }  # fmt: skip
        job = SubmittedJob(
            submission_id=submission_id or job_id or manager.new_id(), entrypoint=command,
            main=main, runtime_env=env, metadata={**self._default_metadata, **(metadata or {})},
            resources={name: value for name, value in asked.items() if value},
        )  # fmt: skip
        return manager.submit(job)

    @program_call
    def get_job_status(self, job_id: str) -> JobStatus:
        """Where it is in its life."""
        return JobStatus(_job(job_id).status)

    @program_call
    def get_job_info(self, job_id: str) -> JobDetails:
        """All there is to know."""
        return _details(_job(job_id))

    @program_call
    def list_jobs(self) -> list[JobDetails]:
        """All jobs that were submitted."""
        _, manager = _request()
        return [_details(job) for job in manager.jobs.values()]

    @program_call
    def stop_job(self, job_id: str) -> bool:
        """Ask it to stop; whether it was running."""
        job = _job(job_id)
        return _request()[1].stop(job)

    @program_call
    def delete_job(self, job_id: str) -> bool:
        """Forget a job that has ended."""
        job = _job(job_id)
        if not JobStatus(job.status).is_terminal():
            raise RuntimeError(
                f"Attempted to delete job '{job_id}', but it is in a non-terminal state "
                f"{job.status}."
            )
        _, manager = _request()
        del manager.jobs[job.submission_id]
        return True

    @program_call
    def get_job_logs(self, job_id: str) -> str:
        """What it has printed so far."""
        return "".join(_job(job_id).log)

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        """What it prints, as it goes on; looked at every second."""
        seen = 0
        while True:
            job = _job(job_id)
            if len(job.log) > seen:
                text = "".join(job.log[seen:])
                seen = len(job.log)
                yield text
            if JobStatus(job.status).is_terminal():
                return
            await asyncio_loop.sleep(1)

    def get_address(self) -> str:
        """Where the dashboard would be."""
        return "http://127.0.0.1:8265"

    def get_version(self) -> str:
        """Of the API."""
        return "4"


def _request() -> tuple[Fiber, JobManager]:
    """One HTTP request: to the head and back."""
    fiber = HUB.current
    if fiber is None:
        from raysim.rayapi import standalone

        fiber = standalone.driver()
    session = fiber.process.session
    if session.cluster is None:
        session.connect(fiber, {})
    costs = session.env.costs
    fiber.pay(2 * (costs.grpc_same_host_ns + costs.grpc_cross_host_extra_ns))
    fiber.settle()
    return fiber, manager_of(session)


def _job(job_id: str) -> SubmittedJob:
    """A job by its submission id, or Ray's own.

    Raises
    ------
    RuntimeError
        There is none.
    """
    _, manager = _request()
    for job in manager.jobs.values():
        if job_id in (job.submission_id, _ray_id(job)):
            return job
    raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")


def _ray_id(job: SubmittedJob) -> str | None:
    return None if job.job_id is None else hex_id("job", job.job_id)


def _details(job: SubmittedJob) -> JobDetails:
    def milliseconds(at_ns: int) -> int | None:
        return None if at_ns < 0 else EPOCH_S * 1000 + at_ns // 1_000_000

    return JobDetails(
        type=JobType.SUBMISSION, submission_id=job.submission_id, status=JobStatus(job.status),
        entrypoint=job.entrypoint, job_id=_ray_id(job), message=job.message,
        error_type=job.error_type, start_time=milliseconds(job.submitted_ns),
        end_time=milliseconds(job.ended_ns), metadata=job.metadata, runtime_env=job.runtime_env,
        driver_node_id=None if job.node_id < 0 else hex_id("node", job.node_id),
        driver_exit_code=job.exit_code,
    )  # fmt: skip


def _assignments(entrypoint: str, env: dict[str, Any]) -> dict[str, Any]:
    """``A=1 python script.py`` as variables of the environment."""
    found: dict[str, str] = {}
    for word in shlex.split(entrypoint):
        name, equals, value = word.partition("=")
        if not equals or not name.isidentifier():
            break
        found[name] = value
    return {"env_vars": {**(env.get("env_vars") or {}), **found}} if found else {}


for _class in (JobStatus, JobErrorType, JobType, JobDetails, JobSubmissionClient):
    _class.__module__ = "ray.job_submission"
__getattr__ = getattr_of("ray.job_submission")
