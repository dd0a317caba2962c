"""An optimizer in main memory that has fewer threads than the host has cores for it.

Ray sets ``OMP_NUM_THREADS`` of a worker to its CPUs, torchrun and ``accelerate launch`` to 1.
"""

from __future__ import annotations

from dataclasses import replace

from raysim.hardware.cluster import ClusterSpec
from raysim.perf.host import HostPool
from raysim.raylibs.warnings import PlannerWarning
from raysim.training.compiler.feed import Feed
from raysim.training.plan import TrainingPlan
from raysim.training.prepared import compile_programs
from raysim.training.program import CPU, Program
from raysim.training.tower import StepOutcome
from raysim.units import format_seconds, to_seconds

NOTICEABLE_SHARE = 0.01
"""Of the step."""


def with_all_cores(plan: TrainingPlan, cluster: ClusterSpec) -> HostPool | None:
    """As many threads as there are cores for each rank; None: it has them, or no use for them."""
    fsdp = plan.engine == "fsdp" and plan.fsdp.cpu_offload
    zero = plan.engine == "deepspeed" and plan.zero.offload_optimizer.device != "none"
    node, threads = cluster.gpu_nodes[0], plan.host_pool.threads
    share = node.cpu.cores // min(node.gpu_count, plan.mesh.world)
    if not (fsdp or zero) or threads is None or threads >= share:
        return None
    return HostPool(threads=share)


def too_few_threads(step: StepOutcome) -> PlannerWarning | None:
    """Said where the step would be shorter with more of them."""
    plan, line = step.plan, step.slowest
    pool = with_all_cores(plan, step.cluster)
    if pool is None:
        return None
    (other,) = compile_programs(
        replace(plan, host_pool=pool), step.comms, step.stages, step.costs,
        feed=Feed(), steps=1, memory=False, ranks=[line.program.rank],
    )  # fmt: skip
    now_s, then_s = _on_host_s(line.program), _on_host_s(other)
    if now_s - then_s < NOTICEABLE_SHARE * to_seconds(step.steady_step_ns):
        return None
    threads = plan.host_pool.threads
    return PlannerWarning(
        code="host-optimizer-with-few-threads",
        cause=f"The optimizer in main memory runs on {threads} thread{'s' * (threads != 1)} per "
        f"rank, of {pool.threads} cores: {format_seconds(now_s)} of each step, "
        f"{format_seconds(then_s)} on all of them. Ray sets OMP_NUM_THREADS to the CPUs of a "
        "worker, 1 if it has none; torchrun and accelerate launch set 1.",
        fix=f"Set OMP_NUM_THREADS={pool.threads} for the workers (env_vars of their runtime_env), "
        f'or resources_per_worker={{"GPU": 1, "CPU": {pool.threads}}} where nothing else sets it.',
    )


def _on_host_s(program: Program) -> float:
    """Seconds of a step's work on main memory."""
    first = program.step_ends[-2] if len(program.step_ends) > 1 else 0
    ops = program.ops[first : program.step_ends[-1]]
    return to_seconds(sum(op.duration_ns for op in ops if op.stream == CPU))
