"""Several jobs on one cluster: who submits them, and what became of each.

Real counterpart: people with ``ray job submit``; KubeRay's RayJob controller where a job has a
deadline or may be tried again. The client is on a machine of its own, so it outlives the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any

from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.failures import exception_of
from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.job_manager import NAMESPACE, JobManager, SubmittedJob, manager_of, script_main
from raysim.raycore.cluster import Cluster
from raysim.raycore.state_log import Change
from raysim.raycore.tasks import TaskSpec
from raysim.raylibs.report import LibraryReport
from raysim.units import NS_PER_S, to_ns
from raysim.workloads.library import LibraryJob, start_library
from raysim.workloads.program import Submission
from raysim.workloads.ray.program import Done
from raysim.workloads.ray.start import Workload, start_workload
from raysim.workloads.rayjob import until_submitted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What became of one; seconds of the run, None where it did not come to that."""

    name: str
    status: str
    message: str
    submitted_s: float
    started_s: float | None
    """Of its driver, in its last attempt."""
    ended_s: float | None
    attempts: int
    job_ids: tuple[int, ...]
    """Of Ray, one per attempt that connected."""
    log: str


class Submitter:
    """Submits jobs at their times and follows each to its end.

    Parameters
    ----------
    submissions
        In any order.
    cluster
        For its clock and its random streams.
    """

    def __init__(self, submissions: tuple[Submission, ...], cluster: Cluster) -> None:
        self._submissions = submissions
        self._cluster = cluster
        self.attempts: list[list[SubmittedJob]] = [[] for _ in submissions]
        """Of each submission."""
        self._left = len(submissions)
        self._late: dict[int, None] = {}
        """Submissions past their deadline."""
        self._all_done: Callable[[Any], object] | None = None

    def main(self) -> None:
        """In a fiber of the client: until every job has ended."""
        client = HUB.current
        assert client is not None, "the client is a fiber"
        manager = manager_of(client.process.session)
        for index, submission in enumerate(self._submissions):
            at_s = submission.at_s + self._until_submitted_s(submission)
            self._cluster.sim.at(to_ns(at_s), partial(self._submit, manager, index))
            if submission.active_deadline_s is not None:
                late_s = submission.at_s + submission.active_deadline_s
                self._cluster.sim.at(to_ns(late_s), partial(self._too_late, manager, index))
        client.block(self._wait)

    def records(self) -> tuple[JobRecord, ...]:
        """What became of all, in the order of the scenario."""
        return tuple(
            _record(submission, attempts)
            for submission, attempts in zip(self._submissions, self.attempts, strict=True)
        )

    def errors(self) -> list[BaseException]:
        """What drivers raised, of every attempt."""
        jobs = (job for attempts in self.attempts for job in attempts)
        return [job.error for job in jobs if job.error is not None]

    def _wait(self, then: Callable[[Any], object]) -> None:
        self._all_done = then

    def _submit(self, manager: JobManager, index: int) -> None:
        submission, attempts = self._submissions[index], self.attempts[index]
        if index in self._late:
            return
        again = f"-{len(attempts)}" if attempts else ""
        command, main = _entrypoint(submission, self._cluster)
        job = SubmittedJob(
            submission_id=f"{submission.name}{again}", entrypoint=command, main=main,
            resources=dict(submission.resources),
            runtime_env=dict(submission.runtime_env),
        )  # fmt: skip
        attempts.append(job)
        job.waiters.append(lambda _: self._ended(manager, index))
        manager.submit(job)

    def _ended(self, manager: JobManager, index: int) -> None:
        submission, attempts = self._submissions[index], self.attempts[index]
        failed = attempts[-1].status == "FAILED" and index not in self._late
        if failed and len(attempts) <= submission.backoff_limit and not manager.is_gone:
            self._submit(manager, index)
        else:
            self._one_less()

    def _too_late(self, manager: JobManager, index: int) -> None:
        """Past its deadline: it is stopped; one not submitted yet will not be."""
        self._late[index] = None
        if self.attempts[index]:
            manager.stop(self.attempts[index][-1])
        else:
            self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if not self._left and self._all_done is not None:
            self._all_done(None)

    def _until_submitted_s(self, its: Submission) -> float:
        """Of a RayJob, from ``kubectl apply``; else nothing."""
        if not its.mode:
            return 0.0
        groups = sorted(self._cluster.groups, key=lambda g: not g.head)
        pods = [
            group.name
            for node_id, group in enumerate(groups)
            if node_id not in self._cluster.cloud.off
        ]
        return until_submitted_s(
            its.name, self._cluster.sim.rng, pods, self._cluster.cloud.spec.starts,
            mode=its.mode, own_cluster=its.own_cluster,
        )  # fmt: skip


def _entrypoint(submission: Submission, cluster: Cluster) -> tuple[str, Callable[[], Any]]:
    if submission.script is not None:
        words = join(["python", str(submission.script.resolve()), *submission.args])
        return script_main(words, Path(), submission.source)
    return join(["python", submission.name]), partial(
        generate, submission.workload, submission.library, cluster
    )


def generate(workload: Workload | None, library: LibraryJob | None, cluster: Cluster) -> None:
    """Run a workload, or a library's job, in the driver that calls; its first error is raised."""
    fiber: Fiber = this_fiber()
    core = this_core(fiber)
    fiber.settle()
    rng = cluster.sim.rng
    if library is not None:
        ended = fiber.block(lambda then: start_library(library, core, rng, then))
    else:
        assert workload is not None, "a job is a script, a workload or a library's"
        ended = fiber.block(lambda then: start_workload(workload, core, rng, then))
    if isinstance(ended, LibraryReport):
        cluster.env.reports.append(ended)
        return
    failed = ended.error if isinstance(ended, Done) else ended
    if failed is not None:
        raise exception_of(failed, "")


def without_supervisors(rows: list[Change]) -> list[Change]:
    """Rows of the log without tasks of the dashboard's own job, as Ray's task events are."""
    own = {row.number: None for row in rows if row.kind == "job" and
           row.detail.namespace == NAMESPACE}  # fmt: skip
    if not own:
        return rows
    tasks = {
        row.number: None
        for row in rows
        if row.kind == "task" and isinstance(row.detail, TaskSpec) and row.detail.job_id in own
    }
    actors = {row.number: None for row in rows if row.kind == "actor" and row.detail.job_id in own}
    hidden = {"task": tasks, "actor": actors, "job": own}
    return [row for row in rows if row.number not in hidden.get(row.kind, ())]


def _record(submission: Submission, attempts: list[SubmittedJob]) -> JobRecord:
    last = attempts[-1] if attempts else None
    return JobRecord(
        name=submission.name,
        status=last.status if last else "PENDING",
        message=last.message if last else "It was never submitted.",
        submitted_s=submission.at_s,
        started_s=_seconds(last.started_ns) if last else None,
        ended_s=_seconds(last.ended_ns) if last else None,
        attempts=len(attempts),
        job_ids=tuple(job.job_id for job in attempts if job.job_id is not None),
        log="".join(last.log) if last else "",
    )


def _seconds(at_ns: int) -> float | None:
    return None if at_ns < 0 else at_ns / NS_PER_S
