"""What a compared row ran: its features, what a step of it works, the sweep it is a choice of.

Beside raysim's prediction stand two that anyone can make without a simulator; they need the work of
a row at the peak of its GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raysim.models.table import Implementation
from raysim.perf.uncertainty import Features
from raysim.results.certainty import features
from raysim.training.tower import StepOutcome

OLD_SDPA: Implementation = "flash_attention_2"
"""What torch's ``sdpa`` ran on Hopper before 2.11: FlashAttention 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Of one row that is a training run."""

    features: Features
    sweeps: tuple[str, ...] = ()
    """Rows under one name share everything but what somebody could have chosen."""
    samples: float = 1.0
    """What the value is divided by to rank choices: samples per step of a time, 1 of a rate."""
    ideal_s: float = 0.0
    """Seconds at peak of a step, or of what a rate counts: 6 N FLOPs per token, N all parameters,
    over all GPUs."""
    ideal_model_s: float = 0.0
    """The same of the model's own FLOPs, three times those of its forward, attention included."""


PREFIX = "job_"
FIELDS = (
    *(f"{PREFIX}{name}" for name in Features.__slots__),
    *(f"{PREFIX}{name}" for name in ("sweeps", "samples", "ideal_s", "ideal_model_s")),
)


def job_of(
    step: StepOutcome, *, sweeps: tuple[str, ...] = (), samples: float = 1.0, counted: float = 1.0
) -> Job:
    """Of a simulated row; ``samples`` as in ``Job``, ``counted`` what a rate counts in a step."""
    plan = step.plan
    micro_batches = step.micro_batches
    per_step = plan.micro_batch * micro_batches * plan.mesh.dp
    gpu = step.costs.gpu
    peak = gpu.flops_per_s.get(plan.product_dtype, gpu.flops_per_s["fp32"]) * plan.mesh.world
    tokens = per_step * plan.model.seq_len
    peak *= counted
    return Job(
        features=features(step),
        sweeps=sweeps,
        samples=samples,
        ideal_s=6.0 * plan.model.num_parameters * tokens / peak,
        ideal_model_s=plan.model.step_flops * per_step / peak,
    )


def cells(job: Job | None) -> dict[str, str]:
    """A job as cells of a table; blank where there is none."""
    if job is None:
        return dict.fromkeys(FIELDS, "")
    own: dict[str, object] = {
        **asdict(job.features), "sweeps": ";".join(job.sweeps), "samples": f"{job.samples:.6g}",
        "ideal_s": f"{job.ideal_s:.6g}", "ideal_model_s": f"{job.ideal_model_s:.6g}",
    }  # fmt: skip
    own["parameters"] = f"{job.features.parameters:.6g}"
    return {f"{PREFIX}{name}": str(value) for name, value in own.items()}


def read_job(row: Mapping[str, str]) -> Job | None:
    """What ``cells`` wrote; None where this row has no job, or its table fewer fields than now."""
    if not row.get(f"{PREFIX}gpu") or any(name not in row for name in FIELDS):
        return None
    said = {name: row[f"{PREFIX}{name}"] for name in (n.removeprefix(PREFIX) for n in FIELDS)}
    words = ("gpu", "architecture", "tables", "engine", "network", "bound")
    own: dict[str, Any] = {name: said[name] for name in words}
    own |= {name: int(said[name]) for name in ("nodes", "gpus", "seq_len")}
    return Job(
        features=Features(**own, parameters=float(said["parameters"])),
        sweeps=tuple(said["sweeps"].split(";")) if said["sweeps"] else (),
        samples=float(said["samples"]),
        ideal_s=float(said["ideal_s"]),
        ideal_model_s=float(said["ideal_model_s"]),
    )
