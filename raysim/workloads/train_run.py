"""Play a training job: start-up, steps, evaluation, checkpoints, extrapolated from a few steps.

Simplification: the job is a repetition of its steady step. One optimizer step after a short
warm-up, and two evaluation batches, are simulated event by event; epochs, evaluations and
checkpoints multiply them. Where machines differ or fail, ``long_run.py`` plays the weeks instead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from raysim.errors import ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.kernel.progress import Progress
from raysim.kernel.simulation import Simulation
from raysim.training.checkpoint.cost import CheckpointCost, checkpoint_cost
from raysim.training.checkpoint.stored import Kind
from raysim.training.communicators import Communicators
from raysim.training.compiler.feed import Feed
from raysim.training.drawn_step import drawn_step_ns
from raysim.training.memory.host import HostMemory
from raysim.training.memory.need import host_need
from raysim.training.noise import ALIKE, Noise
from raysim.training.plan import TrainingPlan
from raysim.training.steps_under import steady_steps_ns
from raysim.training.tower import StepOutcome, simulate
from raysim.units import to_ns, to_seconds
from raysim.workloads.credits import Throttle, throttle_of
from raysim.workloads.failures import Failures
from raysim.workloads.goodput import Goodput, measure, steps_between
from raysim.workloads.long_run import Course, Outage, Pace
from raysim.workloads.machines import Window
from raysim.workloads.startup import Phase, startup_phases
from raysim.workloads.train_job import DataSettings, TrainJob

NEVER_NS = 10**21
SLOW_STEP = 0.95
"""Share of the steps that ``slow_step_s`` is not exceeded in."""


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What a save of this job takes: worked out when somebody asks, for thousands of ranks once."""

    plan: TrainingPlan
    comms: Communicators
    kind: Kind

    @cached_property
    def cost(self) -> CheckpointCost:
        """One save, and one load of it."""
        return checkpoint_cost(self.plan, self.comms, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What a training job takes."""

    job: TrainJob
    step: StepOutcome
    host: HostMemory
    startup: tuple[Phase, ...]
    step_s: float
    steps: int | None
    """Optimizer steps in all; None when the scenario does not say how long the job is."""
    skipped_steps: int
    """Of them, those whose gradients overflow."""
    update_s: float
    """Of a step, what one that is skipped does without."""
    steps_per_epoch: int | None
    evaluation_s: float
    """One evaluation pass; 0 without evaluation data."""
    evaluations: int
    saving: Saving
    checkpoints: int
    healthy_step_s: float
    """Were all machines alike."""
    slow_step_s: float | None = None
    """Not exceeded in ``SLOW_STEP`` of all steps; None where they do not vary, or every rank is
    simulated."""
    drawn_step_s: float | None = None
    """One in which every GPU and every kernel has its own draw; None where kernels do not vary."""
    throttle: Throttle | None = None
    """What becomes of the step when the network's credits are used up; None where that changes
    nothing."""
    goodput: Goodput | None = None
    """Of the whole run; None where machines are alike and do not fail."""

    @property
    def fits(self) -> bool:
        """Whether every GPU and host has memory enough, and the disk space."""
        gpu = self.step.cluster.gpu
        assert gpu is not None, "a training job needs GPUs"
        return self.step.fullest.peak_bytes <= gpu.memory_bytes and self.host.fits

    @property
    def checkpoint(self) -> CheckpointCost:
        """One save, and one load of it; some seconds of work for a large job that never saves."""
        return self.saving.cost

    @property
    def startup_s(self) -> float:
        """Before the first step."""
        return sum(phase.seconds for phase in self.startup)

    @property
    def epoch_s(self) -> float | None:
        """One epoch with its evaluation and checkpoint; None when epochs are not defined."""
        if self.steps_per_epoch is None:
            return None
        saved = self.save_s if self.job.checkpoint.every_epoch else 0.0
        return self.steps_per_epoch * self.step_s + self.evaluation_s + saved

    @property
    def save_s(self) -> float:
        """What one save adds: the stall, and waiting for the one before it to be written."""
        between = _between_saves_s(self.job, self.step_s, self.steps_per_epoch)
        return self.checkpoint.stall_seconds + max(
            0.0, self.checkpoint.background_seconds - between
        )

    @property
    def checkpoint_s(self) -> float:
        """What all saves add; what is written in the background is waited for at the end."""
        if not self.checkpoints:
            return 0.0
        return self.checkpoints * self.save_s + self.checkpoint.background_seconds

    @property
    def training_s(self) -> float | None:
        """All optimizer steps; those that overflow end before they update anything."""
        if self.steps is None:
            return None
        return self._steps_s(self.steps) - self.skipped_steps * self.update_s

    def _steps_s(self, steps: int) -> float:
        """So many steps from full network credits."""
        if self.throttle is None or steps * self.step_s <= self.throttle.after_s:
            return steps * self.step_s
        first = self.throttle.after_s / self.step_s
        return self.throttle.after_s + (steps - first) * self.throttle.step_s

    @property
    def total_s(self) -> float | None:
        """From start-up to the end; with failures in the mean, and None if it may have no end."""
        if self.goodput is not None:
            return self.goodput.wall_s if self.goodput.finished else None
        if self.training_s is None:
            return None
        return (
            self.startup_s
            + self.training_s
            + self.evaluations * self.evaluation_s
            + self.checkpoint_s
        )


def feed_of(data: DataSettings, batch: float) -> Feed:
    """What loading one batch costs."""
    cpu_s = batch * data.cpu_seconds_per_sample
    if data.loader_workers:
        return Feed(loader_s=cpu_s / data.loader_workers, copy_bytes=batch * data.bytes_per_sample)
    return Feed(host_s=cpu_s, copy_bytes=batch * data.bytes_per_sample)


def play_job(
    job: TrainJob, cluster: ClusterSpec, simulation: Simulation, progress: Progress | None = None
) -> JobOutcome:
    """Simulate a job.

    Raises
    ------
    ScenarioError
        The job cannot run on this cluster at all; running out of memory is a result.
    """
    if cluster.gpu is None:
        raise ScenarioError("a training job needs a cluster with GPUs; none of the nodes has one")
    progress = progress or Progress()
    progress.phase("compiling rank", 0.15)
    noise = job.machines.noise_at(None, cluster)
    step = simulate(
        job.plan, cluster, simulation=simulation, feed=feed_for(job), exact=job.exact, noise=noise,
        progress=progress,
    )  # fmt: skip
    progress.phase("evaluation", 0.5)
    steps_per_epoch, steps = _steps_per_epoch(job), steps_of(job)
    evaluation_s = _evaluation_s(job, cluster, noise)
    epochs = _epochs(job, steps, steps_per_epoch)
    node = step.comms.topology.specs[0]
    saving = Saving(plan=job.plan, comms=step.comms, kind=job.checkpoint.kind)
    step_s = to_seconds(step.steady_step_ns)
    checkpoints = _checkpoints(job, steps, epochs, step_s)
    startup = startup_phases(job.plan, node, step.comms.ranks_per_node)
    if job.resume:
        startup = (*startup, Phase(name="load checkpoint", seconds=saving.cost.load_seconds))
    host = host_need(job.plan, step.stages, step.comms)
    outcome = JobOutcome(
        job=job,
        step=step,
        host=host.holding("checkpoint", saving.cost.host_bytes) if checkpoints else host,
        startup=startup,
        step_s=step_s,
        steps=steps,
        skipped_steps=skipped_steps(job.plan, steps),
        update_s=to_seconds(step.update_ns()),
        steps_per_epoch=steps_per_epoch,
        evaluation_s=evaluation_s,
        evaluations=epochs if evaluation_s else 0,
        saving=saving,
        checkpoints=checkpoints,
        healthy_step_s=step_s,
        throttle=throttle_of(step),
    )
    progress.phase("the same step on other machines", 0.52)
    outcome = _beside_alike(outcome, noise, simulation.seed)
    if (job.machines.alike and job.failures is None) or steps is None:
        return outcome
    course = _course(outcome, simulation.seed)
    progress.phase("the whole run, time", 0.6)
    found = measure(course, simulation.seed, at_best=job.checkpoint.optimal, progress=progress)
    return replace(outcome, goodput=found, checkpoints=round(found.saves))


def feed_for(job: TrainJob) -> Feed:
    """What a micro-batch costs before the GPU sees it.

    Of Ulysses' peers each loads a batch for all, in turn (``UlyssesSPDataLoaderAdapter``).
    """
    loaders = job.plan.mesh.cp if job.plan.sharding.ulysses else 1
    return feed_of(job.data, job.plan.micro_batch / loaders)


def _beside_alike(outcome: JobOutcome, noise: Noise, seed: int) -> JobOutcome:
    """With the step of machines that are all alike, and what those that are not can come to."""
    if not noise.quiet:
        alike_ns = _again_ns(outcome, ALIKE, seed)
        outcome = replace(outcome, healthy_step_s=to_seconds(alike_ns))
    if noise.kernel_cv and not outcome.job.exact:
        job, cluster = outcome.job, outcome.step.cluster
        drawn_ns = drawn_step_ns(job.plan, cluster, noise, seed=seed, feed=feed_for(job))
        outcome = replace(outcome, drawn_step_s=to_seconds(drawn_ns))
    if noise.cv and not outcome.job.exact:
        slow_ns = _again_ns(outcome, replace(noise, quantile=SLOW_STEP), seed)
        outcome = replace(outcome, slow_step_s=to_seconds(slow_ns))
    return outcome


def _again_ns(outcome: JobOutcome, noise: Noise, seed: int) -> int:
    """The steady step under other noise, of the same GPUs."""
    job = outcome.job
    return simulate(
        job.plan,
        outcome.step.cluster,
        simulation=Simulation(seed=seed),
        feed=feed_for(job),
        exact=job.exact,
        memory=False,
        noise=noise,
    ).steady_step_ns


def _course(outcome: JobOutcome, seed: int) -> Course:
    """The run as a whole: what it consists of, and what can go wrong with it."""
    job, comms, cluster = outcome.job, outcome.step.comms, outcome.step.cluster
    save = outcome.checkpoint
    failures = job.failures or Failures()
    nodes = len({n for n, _ in comms.placement[: job.plan.mesh.world]})
    assert outcome.steps is not None, "a run has an end"
    course = Course(
        steps=outcome.steps,
        healthy_step_ns=to_ns(outcome.healthy_step_s),
        pace=_pace(outcome, seed),
        startup_ns=to_ns(outcome.startup_s - (save.load_seconds if job.resume else 0.0)),
        resume=job.resume,
        load_ns=to_ns(save.load_seconds),
        evaluation_ns=to_ns(outcome.evaluation_s),
        steps_per_epoch=outcome.steps_per_epoch,
        save_epochs=job.checkpoint.every_epoch and outcome.steps_per_epoch is not None,
        stall_ns=to_ns(save.stall_seconds),
        written_ns=to_ns(save.seconds),
        outages=tuple(
            Outage(
                begin_ns=to_ns(window.from_s),
                end_ns=_end_ns(window),
                patience_ns=to_ns(patience_s),
            )
            for window, patience_s in job.machines.outages(job.plan.mesh, cluster)
        ),
        failures=failures,
        mtbf_s=failures.mtbf_s(nodes, job.plan.mesh.world),
    )
    return replace(course, save_every=_save_every(outcome, course))


def _save_every(outcome: JobOutcome, course: Course) -> int | None:
    """Steps between saves, the more often of what is asked."""
    said = outcome.job.checkpoint
    asked = [said.every_steps, steps_between(said.every_s, course) if said.every_s else None]
    return min((n for n in asked if n is not None), default=None)


def _end_ns(window: Window) -> int:
    return NEVER_NS if math.isinf(window.until_s) else to_ns(window.until_s)


def _pace(outcome: JobOutcome, seed: int) -> Pace:
    """The step under what holds from each moment on; each kind of moment is played once."""
    machines, cluster = outcome.job.machines, outcome.step.cluster
    known = {machines.noise_at(None, cluster): outcome.step.steady_step_ns}
    moments = machines.changes_s()
    noises = [machines.noise_at(moment, cluster) for moment in (0.0, *moments)]
    others = [noise for noise in dict.fromkeys(noises) if noise not in known]
    if outcome.job.exact:
        known |= {noise: _again_ns(outcome, noise, seed) for noise in others}
    elif others:
        plan, feed = outcome.job.plan, feed_for(outcome.job)
        known |= zip(others, steady_steps_ns(plan, cluster, others, feed), strict=True)
    pace = Pace(
        step_ns=tuple(known[noise] for noise in noises),
        changes_ns=tuple(to_ns(t) for t in moments),
    )
    if outcome.throttle is None:
        return pace
    throttle = outcome.throttle
    return pace.no_shorter_from(to_ns(throttle.after_s), to_ns(throttle.step_s))


def _steps_per_epoch(job: TrainJob) -> int | None:
    """As DistributedSampler and the loader count: every rank rounds up, the last batch is kept."""
    samples = job.data.train_samples
    if samples is None:
        return None
    batches = math.ceil(math.ceil(samples / job.plan.mesh.dp) / job.plan.micro_batch)
    return max(1, math.ceil(batches / job.plan.gradient_accumulation_steps))


def steps_of(job: TrainJob) -> int | None:
    """Optimizer steps in all; None of a job that does not say."""
    per_epoch = _steps_per_epoch(job)
    if job.steps is None and job.epochs is not None and per_epoch is not None:
        return job.epochs * per_epoch
    return job.steps


def _epochs(job: TrainJob, steps: int | None, steps_per_epoch: int | None) -> int:
    if job.epochs is not None:
        return job.epochs
    if steps is None or steps_per_epoch is None:
        return 0
    return steps // steps_per_epoch


def _evaluation_s(job: TrainJob, cluster: ClusterSpec, noise: Noise) -> float:
    """One pass over the evaluation set, split over the replicas, from simulated forward passes."""
    data = job.data
    if not data.eval_samples:
        return 0.0
    batch = data.eval_batch_per_gpu or job.plan.micro_batch
    batches = math.ceil(math.ceil(data.eval_samples / job.plan.mesh.dp) / batch)
    plan = replace(job.plan, micro_batch=batch, activation_checkpointing="none")
    outcome = simulate(
        plan,
        cluster,
        simulation=Simulation(),
        feed=feed_of(data, batch),
        steps=2,
        forward_only=True,
        noise=noise,
    )
    return batches * to_seconds(outcome.steady_step_ns)


def skipped_steps(plan: TrainingPlan, steps: int | None) -> int:
    """How many of them do not update the weights."""
    return 0 if plan.loss_scale is None or not steps else plan.loss_scale.skipped(steps)


def _between_saves_s(job: TrainJob, step_s: float, steps_per_epoch: int | None) -> float:
    """Training between two saves; without end where there is one."""
    settings = job.checkpoint
    given = [settings.every_s] if settings.every_s else []
    if settings.every_steps:
        given.append(settings.every_steps * step_s)
    if settings.every_epoch and steps_per_epoch is not None:
        given.append(steps_per_epoch * step_s)
    return min(given, default=math.inf)


def _checkpoints(job: TrainJob, steps: int | None, epochs: int, step_s: float) -> int:
    settings = job.checkpoint
    count = epochs if settings.every_epoch else 0
    if steps is not None and settings.every_steps:
        count += steps // settings.every_steps
    if steps is not None and settings.every_s:
        count += int(steps * step_s // settings.every_s)
    return count
