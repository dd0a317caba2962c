"""Scenario in, Result out: the one door."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import raysim
from raysim.kernel.progress import Progress, Told
from raysim.kernel.record import ColumnRecorder, NullRecorder
from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.models.mixers import UNTIMED
from raysim.raycore.tasks import TaskSpec
from raysim.raylibs.train.host_threads import too_few_threads
from raysim.results import energy, targets
from raysim.results.certainty import without
from raysim.results.links import links
from raysim.results.profile_trust import under_profile
from raysim.results.result import Result, run_id
from raysim.results.summary import summarize
from raysim.scenario.build import build_cluster, build_job
from raysim.scenario.load import AnyScenario, Scenario
from raysim.training.link_use import link_use
from raysim.training.recording import histories, record_outcome
from raysim.workloads import sensitivity
from raysim.workloads.train_run import JobOutcome, play_job
from raysim.workloads.whatif import Effect, faster, smallest_fit

if TYPE_CHECKING:
    from raysim.scenario.program import ProgramScenario
    from raysim.workloads.moment import Pause

logger = logging.getLogger(__name__)
WOULD_HELP_ROWS = 4
Watch = Callable[[Progress], None]


def run(
    scenario: AnyScenario,
    *,
    seed: int | None = None,
    record: bool = True,
    check: bool = False,
    what_if: bool = True,
    progress: Told | None = None,
    watch: Watch | None = None,
    pause: Pause | None = None,
) -> Result:
    """Simulate a scenario.

    Parameters
    ----------
    scenario
        From ``raysim.load``: a training job, or a Ray program.
    seed
        Replaces the scenario's.
    record
        Keep spans and counters for the trace, the frames and the report.
    check
        Run the invariants after every event.
    what_if
        Of a training job: also play its neighbours, for what would help.
    progress
        Told, at every phase, what is being done and how far along it is, from 0 to 1.
    watch
        Given what says where the run is when it is called (a ``Moment``): whenever somebody wants
        to know, also from another thread.
    pause
        Of a Ray program: stand still at a moment and call somebody (``raysim.what_if`` does).

    Returns
    -------
    Result
        Frozen; running out of memory is a result, and so is a program that fails or hangs.

    Raises
    ------
    ScenarioError
        The scenario cannot be built or run.
    """
    if seed is not None:
        scenario = scenario.with_({"seed": seed})
    here = Progress(progress)
    if watch is not None:
        watch(here)
    if not isinstance(scenario, Scenario):
        with collector_at_ease():  # what was there before is old
            result = _run_program(scenario, record=record, check=check, progress=here, pause=pause)
            gc.collect(1)  # processes and their objects refer to each other: gigabytes, in a sweep
        return result
    with collector_at_ease():
        return _run(scenario, record=record, check=check, what_if=what_if, progress=here)


def _run_program(
    scenario: ProgramScenario, *, record: bool, check: bool, progress: Progress, pause: Pause | None
) -> Result:
    from raysim.hardware.port_history import PortHistory
    from raysim.raycore.state_log import StateLog
    from raysim.results.program_summary import (
        disks_left_idle,
        falls_silent,
        summarize_program,
    )
    from raysim.results.ray.recorded import Recorded
    from raysim.scenario.saved import verifying
    from raysim.workloads.program_run import play_program
    from raysim.workloads.watching import Watching, known_end_ns

    log = StateLog()
    simulation = Simulation(seed=scenario.seed, check=check)
    progress.phase("playing", 0.95)
    progress.playing(Watching(simulation, log, known_end_ns(scenario.job)))
    with collector_at_ease():
        ports = PortHistory() if record else None
        pauses = [*verifying(scenario), *([] if pause is None else [pause])]
        outcome = play_program(scenario.job, scenario.cluster, simulation, log, ports, pauses)
        progress.phase("adding up", 1.0)
        summary = {
            "raysim": raysim.__version__,
            "scenario": scenario.name,
            "seed": scenario.seed,
            "run_id": run_id(scenario.identity(), raysim.__version__),
            **summarize_program(outcome, digest=simulation.digest),
        }
    summary["energy"] = energy.of_program(summary, scenario.cluster.groups, _place(scenario))
    summary["trust"] = under_profile(summary["trust"], scenario.profile, "ray")
    _log_inputs(summary)
    summary["targets"] = targets.evaluate(scenario.targets, summary)
    summary["warnings"] = [str(p) for p in scenario.warnings] + disks_left_idle(outcome, summary)
    rows = [row for row in log.rows if row.t_ns <= outcome.end_ns]
    for spec in {row.detail for row in rows if row.detail.__class__ is TaskSpec}:
        spec.forget_values()
    kept = Recorded(
        rows=rows, end_ns=outcome.end_ns,
        config=scenario.job.config, costs=scenario.job.costs,
        lost=tuple(falls_silent(outcome.faults)),
        output=outcome.output, compute_rows=tuple(outcome.compute_rows()),
        ports=ports.uses() if ports is not None else (),
        launches=tuple(outcome.cluster.cloud.launches),
        charts=tuple(report.charts for report in outcome.reports),
    )  # fmt: skip
    return Result(summary=summary, scenario=scenario, program=kept if record else None)


def _run(
    scenario: Scenario, *, record: bool, check: bool, what_if: bool, progress: Progress
) -> Result:
    cluster = build_cluster(scenario)
    job = build_job(scenario)
    recorder = ColumnRecorder() if record else NullRecorder()
    simulation = Simulation(seed=scenario.seed, recorder=recorder, check=check)
    outcome = play_job(job, cluster, simulation, progress)
    progress.phase("recording spans and memory", 0.7)
    uses = link_use(outcome.step) if record or what_if else []
    record_outcome(outcome.step, recorder, uses)
    progress.phase("what would help", 0.95)
    effects = _effects(outcome, progress) if what_if else []
    progress.phase("adding up", 1.0)
    resolved = scenario.resolved()
    summary = {
        "raysim": raysim.__version__,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "run_id": run_id(resolved, raysim.__version__),
        **summarize(outcome, effects, simplifications(outcome)),
    }
    summary["links"] = links(uses)
    summary["sensitivity"] = _sensitivity(outcome) if what_if else None
    summary["energy"] = energy.of_training(summary, cluster.groups, _place(scenario))
    summary["trust"] = under_profile(summary["trust"], scenario.profile, "training")
    if scenario.profile is not None and scenario.profile.training:
        why = "past errors are of raysim's own constants, not of this profile's"
        summary["certainty"] = without(summary["certainty"], why)
    _log_inputs(summary)
    summary["targets"] = targets.evaluate(scenario.targets, summary)
    summary["reference"] = _reference(scenario, summary)
    said = (*scenario.warnings, too_few_threads(outcome.step))
    summary["warnings"] = [str(warning) for warning in said if warning is not None]
    progress.phase("done", 1.0)
    kept = recorder if isinstance(recorder, ColumnRecorder) else None
    memory = histories(outcome.step) if record else ()
    return Result(summary=summary, records=kept, scenario=scenario, histories=memory)


def _log_inputs(summary: Mapping[str, Any]) -> None:
    """Every number the prediction stands on."""
    for row in summary["trust"]["inputs"]:
        told = row["name"], row["value"], row["basis"], row["source"]
        logger.debug("input %s = %s (%s: %s)", *told)


def _place(scenario: AnyScenario) -> energy.Place:
    said = scenario.spec.cluster
    return energy.Place(said.pue, said.gco2e_per_kwh)


def _effects(outcome: JobOutcome, progress: Progress) -> list[Effect]:
    gpu = outcome.step.cluster.gpu
    assert gpu is not None, "a training job needs GPUs"
    plan, cluster = outcome.job.plan, outcome.step.cluster
    if not outcome.fits:
        return smallest_fit(plan, cluster, gpu.memory_bytes)
    effects = faster(
        plan,
        cluster,
        gpu.memory_bytes,
        step_s=outcome.healthy_step_s,
        peak_bytes=outcome.step.fullest.peak_bytes,
        progress=progress,
    )
    return effects[:WOULD_HELP_ROWS]


def _sensitivity(outcome: JobOutcome) -> list[dict[str, object]] | None:
    """Elasticities of the step by hardware input; None where they would take long to compute."""
    plan, cluster = outcome.job.plan, outcome.step.cluster
    ops = sum(len(line.program.ops) for line in outcome.step.timelines)
    if not outcome.fits or not sensitivity.is_cheap(plan, ops):
        return None
    return [e._asdict() for e in sensitivity.of_step(plan, cluster)]


def simplifications(outcome: JobOutcome) -> list[str]:
    """What this prediction leaves out, in the user's words; shown with the result."""
    job, step = outcome.job, outcome.step
    said = [
        _about_machines(outcome),
        "torch's allocator is emulated as if the GPU kept up with the host.",
    ]
    if step.plan.model.model_type == "traced":
        said.append(
            f"{step.plan.model.architecture} is transformers' own class, run once on shapes: no"
            " tensor parallelism, and the kernels that its plain PyTorch code launches."
        )
    if step.plan.model.scans:
        said.append(UNTIMED)
    if step.costs.gpu.is_geforce and step.plan.mesh.world > 1:
        said.append(
            "Gaming cards have no peer-to-peer: NCCL's way through the host's memory is priced as"
            " over PCIe."
        )
    if step.extrapolated:
        few, asked = step.plan.gradient_accumulation_steps, step.micro_batches
        said.append(
            f"{few} of {asked} micro-batches of a step are simulated; "
            "the others repeat the steady period."
        )
    if job.data.train_samples or job.data.cpu_seconds_per_sample:
        said.append("Data loading is priced per sample on the worker's CPU; Ray Data is not run.")
    return said


def _about_machines(outcome: JobOutcome) -> str:
    """What is assumed of machines that are not ideal."""
    machines, failures = outcome.job.machines, outcome.job.failures
    said = "A steady step is simulated and multiplied"
    if machines.alike:
        left_out = (
            "stragglers, failures and jitter" if failures is None else "stragglers and jitter"
        )
        return f"{said}; {left_out} are not."
    if failures is None:
        return f"{said}; failures are not."
    return f"{said}; noise and failures are as the scenario says."


def _reference(scenario: Scenario, summary: dict[str, object]) -> dict[str, object] | None:
    """Measured values the scenario names, beside the predicted ones."""
    if not scenario.reference:
        return None
    said = scenario.spec.train.reference
    return targets.compare(
        scenario.reference, summary, source=None if said is None else said.source
    )
