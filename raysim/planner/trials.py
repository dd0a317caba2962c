"""One point of a space, tried: what it came to, or why it did not.

A trial is plain data: it travels between processes and into tables. Out of memory and refused
settings are results like any other.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from raysim.errors import ScenarioError
from raysim.planner.space import Choice, Point, chosen
from raysim.results import targets
from raysim.run import run
from raysim.scenario.load import AnyScenario
from raysim.scenario.targets import Target

Status = Literal["ok", "out_of_memory", "refused", "failed", "estimated"]
"""``estimated``: only the folded step is known, which says that it cannot be the choice."""
TWO_SIDED = {0.5: 0.674, 0.8: 1.282, 0.9: 1.645, 0.95: 1.960}
"""Standard deviations that a share of normally distributed values is within."""
_WITH_TIME = ("days", "seconds", "total_seconds", "epoch_seconds", "step_seconds", "usd",
              "usd_per_million_tokens", "gpu_hours")  # fmt: skip
_WITH_SPEED = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "mfu", "hfu",
               "model_flops_per_s_per_gpu", "effective_tokens_per_s")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of a point."""

    number: int
    choice: Choice
    status: Status
    why: str = ""
    """One line, of what is not ``ok``."""
    strategy: str = ""
    gpus: int = 0
    nodes: int = 0
    """Both of the cluster."""
    bound_by: str = ""
    run_id: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """By ``results.targets.METRICS``; of what does not fit, only memory's."""
    missed: tuple[str, ...] = ()
    """Targets that are not met, in words."""
    likely: float | None = None
    """Probability that all targets are met, under the prediction's interval."""

    @property
    def meets(self) -> bool:
        """It runs, and meets all targets."""
        return self.status == "ok" and not self.missed

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def of_plain(plain: Mapping[str, Any]) -> Trial:
    """The trial that ``plain`` was made of."""
    return Trial(**{**plain, "missed": tuple(plain["missed"])})


def try_point(scenario: AnyScenario, point: Point, limits: tuple[Target, ...]) -> Trial:
    """Run one point; never raises for what the point itself does wrong."""
    try:
        changed = chosen(scenario, point.choice)
        with contextlib.redirect_stdout(io.StringIO()):  # what a program prints
            summary = run(changed, record=False, what_if=False).summary
    except ScenarioError as error:
        why = error.problems[0].message
        return Trial(number=point.number, choice=point.choice, status="refused", why=why)
    metrics = targets.values_of(summary)
    status = _status(summary["verdict"])
    rows = targets.evaluate(limits, summary) if status == "ok" else []
    certainty = summary.get("certainty") if rows else None
    return Trial(
        number=point.number, choice=point.choice, status=status,
        why="" if status == "ok" else summary["verdict"]["text"],
        strategy=(summary.get("job") or {}).get("strategy", ""),
        gpus=changed.cluster.num_gpus, nodes=len(changed.cluster.nodes),
        bound_by=(summary.get("bound_by") or {}).get("what", ""), run_id=summary["run_id"],
        metrics=metrics,
        missed=tuple(row["text"] for row in rows if not row["passed"]),
        likely=_likely(limits, metrics, certainty) if certainty else None,
    )  # fmt: skip


def _status(verdict: Mapping[str, Any]) -> Status:
    if not verdict.get("fits", True):
        return "out_of_memory"
    return "ok" if verdict.get("ok", True) else "failed"


def _likely(
    limits: tuple[Target, ...], metrics: Mapping[str, float], certainty: Mapping[str, Any]
) -> float | None:
    """Probability that every target is met; times and speeds move together, memory apart.

    Errors are taken as lognormal, with the interval's ends as its quantiles.
    """
    least: dict[str, float] = {}
    for limit in limits:
        kind, up = _moves_with(limit.name)
        interval = certainty.get(kind) if kind else None
        value = metrics.get(limit.name)
        if not interval or value is None:
            continue
        middle = metrics["step_seconds"] if kind == "step_seconds" else metrics["memory_peak"]
        deviations = TWO_SIDED.get(certainty.get("covers", 0.9), TWO_SIDED[0.9])
        spread = math.log(interval["high"] / interval["low"]) / 2 / deviations
        shift = math.log(interval["high"] * interval["low"]) / 2 - math.log(middle)
        if limit.limit <= 0 or not spread:
            continue
        room = math.log(limit.limit / value) * (1 if up else -1)
        below = 0.5 * (1 + math.erf((room - shift) / spread / math.sqrt(2)))
        wants_less = limit.op in ("<=", "<")
        chance = below if wants_less == up else 1 - below
        least[kind] = min(least.get(kind, 1.0), chance)
    return math.prod(least.values()) if least else None


def _moves_with(name: str) -> tuple[str, bool]:
    """The interval a metric follows, and whether it grows with it."""
    if name in _WITH_TIME:
        return "step_seconds", True
    if name in _WITH_SPEED:
        return "step_seconds", False
    if name in ("gpu_mem_peak", "memory_peak"):
        return "memory_peak_bytes", True
    return "", True
