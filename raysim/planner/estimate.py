"""A point's speed and cost from its folded step: a tenth of the time that playing it takes.

Memory, start-up, checkpoints and failures are left out, so an estimate only says what cannot be
the best; what may be is played.
"""

from __future__ import annotations

from raysim.errors import ScenarioError
from raysim.kernel.simulation import collector_at_ease
from raysim.planner.space import Point, chosen
from raysim.planner.trials import Trial
from raysim.results.cost import cost
from raysim.scenario.build import build_job
from raysim.scenario.load import Scenario
from raysim.training.folding import folded_step_s
from raysim.workloads.train_run import feed_for, steps_of

ESTIMATED = (
    "step_seconds", "samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "days", "seconds",
    "total_seconds", "usd", "usd_per_million_tokens", "gpu_hours",
)  # fmt: skip
"""Metrics that an estimate has, where the job has them."""
DAY_S = 86400.0


def estimate_point(scenario: Scenario, point: Point) -> Trial:
    """The estimate; never raises for what the point itself does wrong."""
    try:
        changed = chosen(scenario, point.choice)
        assert isinstance(changed, Scenario), "of a training job"
        with collector_at_ease():
            metrics = _metrics(changed)
    except ScenarioError as error:
        why = error.problems[0].message
        return Trial(number=point.number, choice=point.choice, status="refused", why=why)
    return Trial(
        number=point.number, choice=point.choice, status="estimated",
        gpus=changed.cluster.num_gpus, metrics=metrics,
    )  # fmt: skip


def _metrics(scenario: Scenario) -> dict[str, float]:
    job, cluster = build_job(scenario), scenario.cluster
    plan = job.plan
    step_s = folded_step_s(plan, cluster, feed_for(job))
    samples_per_s = plan.samples_per_step / step_s
    found: dict[str, float | None] = {"step_seconds": step_s, "samples_per_s": samples_per_s}
    counts_tokens = plan.model.sample_unit == "tokens"
    if counts_tokens:
        found["tokens_per_s"] = tokens_per_s = samples_per_s * plan.model.seq_len
        found["tokens_per_s_per_gpu"] = tokens_per_s / plan.mesh.world
    steps = steps_of(job)
    if steps is not None:
        total_s = steps * step_s
        found |= {"seconds": total_s, "total_seconds": total_s, "days": total_s / DAY_S}
        tokens = steps * plan.samples_per_step * plan.model.seq_len if counts_tokens else None
        money = cost(
            gpus=cluster.num_gpus, seconds=total_s, usd_per_hour=cluster.usd_per_hour,
            tokens=tokens,
        )  # fmt: skip
        found |= {name: money[name] for name in ("usd", "usd_per_million_tokens", "gpu_hours")}
    return {name: value for name, value in found.items() if value is not None}
