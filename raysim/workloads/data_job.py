"""A job of Ray Data whose trainers' steps the training tower predicts.

Real counterpart: ``TorchTrainer(..., datasets={"train": ds})`` around a loop over
``ray.train.get_dataset_shard("train").iter_batches()``; or a script that ends in ``write_parquet``,
``materialize`` or a loop over batches, which ``raylibs.data.job.DataJob`` is by itself.

Not modelled: what Train's controller does around it (``trainer_job``), evaluation between steps,
ranks' own loaders, host memory of the trainers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raylibs.data.job import DataJob
from raysim.raylibs.data.report import METRICS
from raysim.raylibs.report import Input, LibraryReport, Unit
from raysim.units import GIB
from raysim.workloads.train_job import TrainJob
from raysim.workloads.train_run import JobOutcome, play_job


@dataclass(frozen=True, slots=True, kw_only=True)
class FedTraining:
    """Trainers that feed on a dataset."""

    job_of: Callable[[int], tuple[TrainJob, ClusterSpec]]
    """The training job and the cluster it is predicted on, by the number of workers."""
    data: DataJob
    """Its consumer's batches and step are those of the training job."""

    kind: ClassVar[str] = "data"
    metrics: ClassVar[Mapping[str, Unit]] = {
        **METRICS, "step_seconds": "seconds", "gpu_mem_peak": "share",
    }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver.

        Raises
        ------
        ScenarioError
            A sample of the model is not a row.
        """
        workers = self.data.consumer.workers
        job, cluster = self.job_of(workers)
        outcome = play_job(job, cluster, Simulation(seed=streams.seed))
        peak = outcome.step.fullest.peak_bytes / _gpu_bytes(outcome)
        more = {"step_seconds": outcome.step_s, "gpu_mem_peak": peak}
        if not outcome.fits:
            need = outcome.step.fullest.peak_bytes / GIB
            return LibraryReport(
                kind=self.kind, ok=False, metrics=more,
                text=f"does not fit: a step needs {need:.1f} GiB on the fullest GPU, {peak:.0%}",
            )  # fmt: skip
        report = yield from self._fed(outcome).main(process, streams)
        if not isinstance(report, LibraryReport):
            return report
        return replace(report, metrics={**report.metrics, **more})

    def _fed(self, outcome: JobOutcome) -> DataJob:
        """The dataset with the trainers of that training job."""
        plan, consumer = outcome.job.plan, self.data.consumer
        if plan.model.sample_unit == "tokens":
            raise ScenarioError(
                "consumer.model counts tokens, but its rows are samples: give `step` in its place"
            )
        per_step = plan.samples_per_step // consumer.workers
        return replace(
            self.data,
            consumer=replace(
                consumer,
                batching=replace(consumer.batching, batch_size=per_step, drop_last=True),
                step_s_per_row=outcome.step_s / per_step,
            ),
            inputs=(
                Input(
                    name="step", value=outcome.step_s, basis="assumed",
                    source="the training tower's prediction for this job",
                ),
            ),
        )  # fmt: skip


def _gpu_bytes(outcome: JobOutcome) -> int:
    gpu = outcome.step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    return gpu.memory_bytes
