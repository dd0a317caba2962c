"""Scenario in, Result out: the one door."""

from __future__ import annotations

from collections.abc import Callable

import raysim
from raysim.kernel.record import ColumnRecorder, NullRecorder
from raysim.kernel.simulation import Simulation, collector_at_ease
from raysim.raycore.state_log import StateLog
from raysim.results import energy, targets
from raysim.results.certainty import without
from raysim.results.profile_trust import under_profile
from raysim.results.result import Result, run_id
from raysim.results.summary import summarize
from raysim.scenario.build import build_cluster, build_job
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.program import ProgramScenario
from raysim.training.recording import record_outcome
from raysim.workloads.train_run import JobOutcome, play_job
from raysim.workloads.whatif import Effect, faster, smallest_fit

WOULD_HELP_ROWS = 4
Progress = Callable[[str, float], None]
Watch = Callable[[Callable[[], str]], None]


def run(
    scenario: AnyScenario,
    *,
    seed: int | None = None,
    record: bool = True,
    check: bool = False,
    what_if: bool = True,
    progress: Progress | None = None,
    watch: Watch | None = None,
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
        Of a training job: told what is being done and how far along it is, from 0 to 1.
    watch
        Of a Ray program: given a function that says in one line where the run is, to be called
        whenever somebody wants to know, also from another thread.

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
    if isinstance(scenario, ProgramScenario):
        return _run_program(scenario, record=record, check=check, watch=watch)
    with collector_at_ease():
        return _run(scenario, record=record, check=check, what_if=what_if, progress=progress)


def _run_program(
    scenario: ProgramScenario, *, record: bool, check: bool, watch: Watch | None
) -> Result:
    from raysim.results.program_summary import (
        disks_left_idle,
        falls_silent,
        summarize_program,
    )
    from raysim.results.ray.recorded import Recorded
    from raysim.workloads.program_run import play_program
    from raysim.workloads.watching import Watching

    log = StateLog()
    simulation = Simulation(seed=scenario.seed, check=check)
    if watch is not None:
        watch(Watching(simulation, log))
    with collector_at_ease():
        outcome = play_program(scenario.job, scenario.cluster, simulation, log)
        summary = {
            "raysim": raysim.__version__,
            "scenario": scenario.name,
            "seed": scenario.seed,
            "run_id": run_id(scenario.identity(), raysim.__version__),
            **summarize_program(outcome, digest=simulation.digest),
        }
    summary["energy"] = energy.of_program(summary, scenario.cluster.groups, _place(scenario))
    summary["trust"] = under_profile(summary["trust"], scenario.profile, "ray")
    summary["targets"] = targets.evaluate(scenario.targets, summary)
    summary["warnings"] = [str(p) for p in scenario.warnings] + disks_left_idle(outcome, summary)
    kept = Recorded(
        rows=[row for row in log.rows if row.t_ns <= outcome.end_ns], end_ns=outcome.end_ns,
        config=scenario.job.config, lost=tuple(falls_silent(outcome.faults)),
        output=outcome.output, compute_rows=tuple(outcome.compute_rows()),
    )  # fmt: skip
    return Result(summary=summary, scenario=scenario, program=kept if record else None)


def _run(
    scenario: Scenario, *, record: bool, check: bool, what_if: bool, progress: Progress | None
) -> Result:
    cluster = build_cluster(scenario)
    job = build_job(scenario)
    recorder = ColumnRecorder() if record else NullRecorder()
    simulation = Simulation(seed=scenario.seed, recorder=recorder, check=check)
    outcome = play_job(job, cluster, simulation, progress)
    record_outcome(outcome.step, recorder)
    if progress:
        progress("what would help", 0.6)
    effects = _effects(outcome) if what_if else []
    resolved = scenario.resolved()
    summary = {
        "raysim": raysim.__version__,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "run_id": run_id(resolved, raysim.__version__),
        **summarize(outcome, effects, simplifications(outcome)),
    }
    summary["energy"] = energy.of_training(summary, cluster.groups, _place(scenario))
    summary["trust"] = under_profile(summary["trust"], scenario.profile, "training")
    if scenario.profile is not None and scenario.profile.training:
        why = "past errors are of raysim's own constants, not of this profile's"
        summary["certainty"] = without(summary["certainty"], why)
    summary["targets"] = targets.evaluate(scenario.targets, summary)
    summary["reference"] = _reference(scenario, summary)
    summary["warnings"] = [str(problem) for problem in scenario.warnings]
    if progress:
        progress("done", 1.0)
    kept = recorder if isinstance(recorder, ColumnRecorder) else None
    return Result(summary=summary, records=kept, scenario=scenario)


def _place(scenario: AnyScenario) -> energy.Place:
    said = scenario.spec.cluster
    return energy.Place(said.pue, said.gco2e_per_kwh)


def _effects(outcome: JobOutcome) -> list[Effect]:
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
    )
    return effects[:WOULD_HELP_ROWS]


def simplifications(outcome: JobOutcome) -> list[str]:
    """What this prediction leaves out, in the user's words; shown with the result."""
    job, step = outcome.job, outcome.step
    said = [
        _about_machines(outcome),
        "torch's allocator is emulated as if the GPU kept up with the host.",
    ]
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
