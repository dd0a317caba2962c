"""Jobs: a driver's life, and what ends with it.

Real counterpart: ``src/ray/gcs/gcs_job_manager.cc``. A job is a driver and all it started. It ends
when the driver says so, or when its process or node dies; then every raylet ends the job's workers,
actors that are not detached die, and so do placement groups that nobody else holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysim.raycore.gcs.tables import GcsJob
from raysim.raycore.ids import JobID, NodeID, WorkerID
from raysim.raycore.protocol import AddJob, JobFinished

if TYPE_CHECKING:
    from raysim.raycore.gcs.server import Gcs


class GcsJobManager:
    """One per GCS."""

    def __init__(self, gcs: Gcs) -> None:
        self._gcs = gcs
        self._table = gcs.tables.jobs

    def add(self, m: AddJob) -> None:
        """A driver has started."""
        if m.job_id in self._table:  # sent again after a restart of the GCS
            return
        self._table[m.job_id] = GcsJob(m, self._gcs.sim.now_ns)
        self._note(m.job_id, "RUNNING")

    def finish(self, job_id: JobID) -> None:
        """It has ended, in whatever way; a second time does nothing."""
        job = self._table.get(job_id)
        if job is None or job.end_ns >= 0:
            return
        job.end_ns = self._gcs.sim.now_ns
        self._note(job_id, "FINISHED")
        self._gcs.publisher.publish_job(JobFinished(job_id))
        self._gcs.actors.on_job_finished(job_id)
        self._gcs.groups.on_job_finished(job_id)

    def on_worker_dead(self, worker_id: WorkerID) -> None:
        """If it was a driver, its job is over."""
        for job_id, job in list(self._table.items()):
            if job.end_ns < 0 and job.spec.driver.worker_id == worker_id:
                self.finish(job_id)

    def on_node_dead(self, node_id: NodeID) -> None:
        """Jobs whose driver was there are over."""
        for job_id, job in list(self._table.items()):
            if job.end_ns < 0 and job.spec.driver.node_id == node_id:
                self.finish(job_id)

    def is_dead(self, job_id: JobID) -> bool:
        """Known to have ended."""
        job = self._table.get(job_id)
        return job is not None and job.end_ns >= 0

    def _note(self, job_id: JobID, state: str) -> None:
        if self._gcs.env.log.enabled:
            job = self._table[job_id].spec
            self._gcs.env.log.note(
                "job", job_id, state, self._gcs.sim.now_ns, node_id=job.driver.node_id,
                worker_id=job.driver.worker_id, detail=job,
            )  # fmt: skip
