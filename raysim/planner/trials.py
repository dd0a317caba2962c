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
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from raysim.errors import ScenarioError
from raysim.planner.space import Choice, Point, chosen
from raysim.results import targets
from raysim.run import run
from raysim.scenario.load import AnyScenario
from raysim.scenario.targets import Target, parse_target

Status = Literal["ok", "out_of_memory", "refused", "failed", "estimated"]
"""``estimated``: only the folded step is known, which says that it cannot be the choice."""
NORMAL = NormalDist()
_WITH_TIME = ("days", "seconds", "total_seconds", "epoch_seconds", "step_seconds", "usd",
              "usd_per_million_tokens", "gpu_hours", "kwh", "kg_co2e")  # fmt: skip
_WITH_SPEED = ("tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s", "mfu", "hfu",
               "model_flops_per_s_per_gpu", "effective_tokens_per_s")  # fmt: skip
FITS = parse_target("gpu_mem_peak", "<= 100 %")
"""What nobody needs to ask for."""


class Spread(NamedTuple):
    """How far measured values lie from a prediction: lognormal, as logarithms of the ratio."""

    middle: float
    deviation: float
    drawn: int = 0
    """Of so many runs that chance made differ; 0: of past errors, which alike jobs share."""

    def factor(self, quantile: float) -> float:
        """Measured over predicted, at a quantile."""
        return math.exp(self.middle + self.deviation * NORMAL.inv_cdf(quantile))


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
    """Probability that it fits and all targets are met, under the prediction's intervals."""
    spread: Spread | None = None
    """Of the step's time, as past errors on such jobs say; of a job's time, as chance does."""

    @property
    def meets(self) -> bool:
        """It runs, and meets all targets."""
        return self.status == "ok" and not self.missed

    def plain(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def of_plain(plain: Mapping[str, Any]) -> Trial:
    """The trial that ``plain`` was made of."""
    ends = plain.get("spread")
    spread = None if ends is None else Spread(*ends)
    return Trial(**{**plain, "missed": tuple(plain["missed"]), "spread": spread})


def follows_time(name: str) -> int:
    """1: a metric that grows with the step's time; -1: that falls; 0: neither."""
    return (name in _WITH_TIME) - (name in _WITH_SPEED)


def try_point(
    scenario: AnyScenario, point: Point, limits: tuple[Target, ...], seed: int | None = None
) -> Trial:
    """Run one point once; never raises for what the point itself does wrong."""
    try:
        changed = chosen(scenario, point.choice)
        changed = changed if seed is None else changed.with_({"seed": seed})
        with contextlib.redirect_stdout(io.StringIO()):  # what a program prints
            summary = run(changed, record=False, what_if=False).summary
    except ScenarioError as error:
        why = error.problems[0].message
        return Trial(number=point.number, choice=point.choice, status="refused", why=why)
    metrics = targets.values_of(summary)
    status = _status(summary["verdict"])
    rows = targets.evaluate(limits, summary) if status == "ok" else []
    certainty = summary.get("certainty") if status == "ok" else None
    return Trial(
        number=point.number, choice=point.choice, status=status,
        why="" if status == "ok" else summary["verdict"]["text"],
        strategy=(summary.get("job") or {}).get("strategy", ""),
        gpus=changed.cluster.num_gpus, nodes=len(changed.cluster.nodes),
        bound_by=(summary.get("bound_by") or {}).get("what", ""), run_id=summary["run_id"],
        metrics=metrics,
        missed=tuple(row["text"] for row in rows if not row["passed"]),
        likely=_likely((*limits, FITS), metrics, certainty) if certainty else None,
        spread=_spread(certainty, "step_seconds", metrics) if certainty else None,
    )  # fmt: skip


def _status(verdict: Mapping[str, Any]) -> Status:
    if not verdict.get("fits", True):
        return "out_of_memory"
    return "ok" if verdict.get("ok", True) else "failed"


def _likely(
    limits: tuple[Target, ...], metrics: Mapping[str, float], certainty: Mapping[str, Any]
) -> float | None:
    """Probability that every limit holds; times and speeds move together, memory apart.

    Errors are taken as lognormal, with the interval's ends as its quantiles.
    """
    least: dict[str, float] = {}
    for limit in limits:
        kind, up = _moves_with(limit.name)
        spread = _spread(certainty, kind, metrics) if kind else None
        value = metrics.get(limit.name)
        if spread is None or not value or limit.limit <= 0:
            continue
        room = math.log(limit.limit / value) * (1 if up else -1)
        below = NORMAL.cdf((room - spread.middle) / spread.deviation)
        wants_less = limit.op in ("<=", "<")
        chance = below if wants_less == up else 1 - below
        least[kind] = min(least.get(kind, 1.0), chance)
    return math.prod(least.values()) if least else None


def _spread(certainty: Mapping[str, Any], kind: str, metrics: Mapping[str, float]) -> Spread | None:
    """Of a prediction whose interval has ends; None of one without."""
    interval = certainty.get(kind)
    predicted = metrics.get("step_seconds" if kind == "step_seconds" else "memory_peak")
    if not interval or not predicted or interval["high"] <= interval["low"]:
        return None
    deviations = NORMAL.inv_cdf((1 + certainty.get("covers", 0.9)) / 2)
    return Spread(
        math.log(interval["high"] * interval["low"]) / 2 - math.log(predicted),
        math.log(interval["high"] / interval["low"]) / 2 / deviations,
    )


def _moves_with(name: str) -> tuple[str, bool]:
    """The interval a metric follows, and whether it grows with it."""
    if follows_time(name):
        return "step_seconds", follows_time(name) > 0
    if name in ("gpu_mem_peak", "memory_peak"):
        return "memory_peak_bytes", True
    return "", True
