"""A training job under Ray Train's controller: ``TorchTrainer(train_func, ...).fit()``.

Steps, memory and checkpoints are those that the training tower predicts for each size of the
worker group (``train_run.play_job``); the emulated cluster plays everything else: placement groups,
workers that start and import, reports, uploads, nodes that go, elastic sizes.

Not modelled: evaluation between steps, steps that are slow while a checkpoint is uploaded beside
them (other than by what both take of the network), loss scales that skip steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.rng import Streams
from raysim.kernel.simulation import Simulation
from raysim.perf.ray_core import RayCosts
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raylibs.report import Input, LibraryReport, Unit
from raysim.raylibs.train.config import RunConfig, ScalingConfig
from raysim.raylibs.train.host_threads import too_few_threads
from raysim.raylibs.train.job import TrainRun
from raysim.raylibs.train.loop import CheckpointSpec, SetUp, TrainLoop
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker import TrainFunction
from raysim.raylibs.warnings import PlannerWarning
from raysim.units import GIB
from raysim.workloads import startup
from raysim.workloads.train_job import TrainJob
from raysim.workloads.train_run import JobOutcome, play_job

WHOLE_READS = 2.0
"""Ranks that together read more of a checkpoint than this many times all of it read it whole."""
_REPEATED = {"imports", "process group", "Ray worker processes"}
"""Phases of the start that Ray Core and Ray Train play themselves."""


class Sizes:
    """The training job at each size of its worker group, each simulated once."""

    def __init__(
        self, job_of: Callable[[int], tuple[TrainJob, ClusterSpec]], most: int, seed: int
    ) -> None:
        self._job_of = job_of
        self._most = most
        self._seed = seed
        self._known: dict[int, JobOutcome] = {}
        self.like_most: dict[int, None] = {}
        """Sizes by which the job's batch does not divide: each rank keeps its batch."""

    def outcome(self, world_size: int) -> JobOutcome:
        """Its steps and memory.

        Raises
        ------
        ScenarioError
            The job's layout or batch does not divide by so many ranks.
        """
        if world_size not in self._known:
            job, cluster = self._job_of(world_size)
            found = play_job(job, cluster, Simulation(seed=self._seed))
            self._known[world_size] = found
        return self._known[world_size]

    def _outcome_like(self, world_size: int) -> tuple[JobOutcome, float]:
        """Its own; or the largest group's, and what share of its ranks it has."""
        if world_size not in self.like_most:
            try:
                return self.outcome(world_size), 1.0
            except ScenarioError:
                self.like_most[world_size] = None
        return self.outcome(self._most), world_size / self._most

    def seconds(self, world_size: int) -> float:
        """Of one step; ``raylibs.train.loop.StepTime``."""
        return self._outcome_like(world_size)[0].step_s

    def samples(self, world_size: int) -> float:
        """Tokens, or samples, of one step."""
        found, share = self._outcome_like(world_size)
        plan = found.job.plan
        each = plan.model.seq_len if plan.model.sample_unit == "tokens" else 1
        return plan.samples_per_step * each * share


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerJob:
    """One run."""

    job_of: Callable[[int], tuple[TrainJob, ClusterSpec]]
    """The training job and the cluster it is predicted on, by the number of workers."""
    scaling_config: ScalingConfig
    run_config: RunConfig
    report_every: int | None = None
    on_preemption: Literal["ignore", "checkpoint"] = "ignore"
    weights_bytes: float = 0.0
    """Read by every node before a fresh run's first step."""
    spot: bool = False

    kind: ClassVar[str] = "train"
    metrics: ClassVar[Mapping[str, Unit]] = {
        **TrainRun.metrics, "step_seconds": "seconds", "gpu_mem_peak": "share",
    }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        most = self.scaling_config.max_workers
        sizes = Sizes(self.job_of, most, streams.seed)
        outcome = sizes.outcome(most)
        peak = _peak_share(outcome)
        if not outcome.fits:
            return _out_of_memory(outcome, peak)
        run = TrainRun(
            spec=self._spec(sizes, outcome),
            samples=sizes.samples,
            spot=self.spot,
            inputs=_inputs(outcome),
        )
        report = yield from run.main(process, streams)
        if not isinstance(report, LibraryReport):
            return report
        more = {"step_seconds": outcome.step_s, "gpu_mem_peak": peak}
        warnings = (*report.warnings, *self._warnings(outcome))
        said = report.simplifications
        if sizes.like_most:
            others = ", ".join(map(str, sizes.like_most))
            said = (*said, f"The batch does not divide by {others} workers: each kept its own.")
        return replace(
            report, metrics={**report.metrics, **more}, warnings=warnings, simplifications=said
        )

    def _spec(self, sizes: Sizes, outcome: JobOutcome) -> TrainerSpec:
        job = outcome.job
        every = _steps_between(outcome)
        saves = every is not None or self.on_preemption == "checkpoint"
        engine_s = startup.IMPORT_S[job.plan.engine]
        rest_s = sum(p.seconds for p in outcome.startup if p.name not in _REPEATED)
        loop = TrainLoop(
            steps=outcome.steps or 1,
            step=sizes,
            report_every=self.report_every,
            checkpoint_every=every,
            checkpoint=_checkpoint(outcome) if saves else None,
            set_up=SetUp(
                core_s=engine_s - startup.IMPORT_S["ddp"],
                wait_s=rest_s,
                read_bytes=self.weights_bytes,
            ),
            on_preemption=self.on_preemption,
        )
        return TrainerSpec(
            function=TrainFunction(loop=loop),
            scaling_config=self.scaling_config,
            run_config=replace(self.run_config, name=job.name, storage=job.plan.saving.storage),
            process_group_s=startup.PROCESS_GROUP_S,
        )

    def _warnings(self, outcome: JobOutcome) -> tuple[PlannerWarning, ...]:
        few = too_few_threads(outcome.step)
        found = () if few is None else (few,)
        plan = outcome.job.plan
        sharded = plan.engine == "deepspeed" and plan.zero.stage > 0
        full = outcome.job.checkpoint.kind == "full"
        if not (self.scaling_config.elastic and sharded and full) or plan.saving.load_universal:
            return found
        return (
            *found,
            PlannerWarning(
                code="zero-checkpoint-of-another-size",
                cause=f"ZeRO stage {plan.zero.stage} saves the optimizer in as many parts as there "
                "are ranks, and DeepSpeed refuses to load them into another number; this elastic "
                "run is played as if it could.",
                fix="Convert with ds_to_universal.py and set checkpoint.load_universal, or give "
                "num_workers as one number.",
            ),
        )


def _steps_between(outcome: JobOutcome) -> int | None:
    """Saves, the most frequent of what is asked."""
    said = outcome.job.checkpoint
    asked = [
        said.every_steps,
        max(1, round(said.every_s / outcome.step_s)) if said.every_s else None,
        outcome.steps_per_epoch if said.every_epoch else None,
    ]
    return min((n for n in asked if n is not None), default=None)


def _checkpoint(outcome: JobOutcome) -> CheckpointSpec:
    """What the tower's files come to."""
    cost = outcome.checkpoint
    alone = len({f.rank for f in cost.files}) == 1
    return CheckpointSpec(
        total_bytes=float(cost.total_bytes),
        writers="rank0" if alone else "all",
        readers="whole" if cost.read_bytes > WHOLE_READS * cost.total_bytes else "own",
        gather_s=cost.collect_seconds,
        mode="ASYNC" if outcome.job.plan.saving.asynchronous else "SYNC",
    )


def _peak_share(outcome: JobOutcome) -> float:
    gpu = outcome.step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    return outcome.step.fullest.peak_bytes / gpu.memory_bytes


def _out_of_memory(outcome: JobOutcome, peak: float) -> LibraryReport:
    """As every rank would find in its first step."""
    need = outcome.step.fullest.peak_bytes / GIB
    where = "GPU" if peak > 1 else "host"
    return LibraryReport(
        kind=TrainerJob.kind, ok=False, metrics={"gpu_mem_peak": peak},
        text=f"does not fit: a {where} runs out of memory in the first step "
        f"({need:.1f} GiB on the fullest GPU, {peak:.0%})",
    )  # fmt: skip


def _inputs(outcome: JobOutcome) -> tuple[Input, ...]:
    cost = outcome.checkpoint
    return (
        Input(name="step", value=outcome.step_s, basis="assumed",
              source="the training tower's prediction for this job"),
        Input(name="checkpoint bytes", value=cost.total_bytes, basis="datasheet",
              source="sizes of the files that the engine writes"),
        Input(name="torch.save", value=CheckpointSpec(total_bytes=0).save_bytes_per_s,
              basis="measured", source="bytes/s of one thread (training.checkpoint.traffic)"),
        Input(name="imports", value=RayCosts().train_worker_core_s, basis="measured",
              source=f"{startup.PROVENANCE['imports'].source}; a profile's, where there is one"),
        Input(name="process group", value=startup.PROCESS_GROUP_S, basis="assumed",
              source=startup.PROVENANCE["process group"].source),
    )  # fmt: skip
