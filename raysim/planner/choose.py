"""A choice among trials: the best that meets the targets, what it costs to want more, and why not.

Infeasible is an answer: what stood in the way, counted, the trial that came closest, and the
smallest change beyond the space that would do.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from raysim.errors import Problem, ScenarioError
from raysim.planner.default_space import ENGINE
from raysim.planner.draws import played
from raysim.planner.space import Point, Space, is_node, is_nodes, said, spread_out
from raysim.planner.sweep import Sweep
from raysim.planner.trials import NORMAL, Trial, follows_time
from raysim.results.targets import METRICS, show
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.targets import METRICS as UNITS
from raysim.scenario.targets import Target

Direction = Literal["minimize", "maximize"]
COSTS = ("usd_per_million_output_tokens", "usd", "usd_per_million_tokens", "gpu_hours",
         "step_seconds", "seconds")  # fmt: skip
"""What is minimised when nobody says: the first that the job has."""
GAINS: Mapping[str, Direction] = {
    "tokens_per_s": "maximize", "samples_per_s": "maximize", "tpot_mean": "minimize",
    "latency_p99": "minimize",
}  # fmt: skip
EQUAL_WORK = 1.1
"""Tokens of the largest over the smallest run: a last step or an epoch's last batch is no more."""
RUNS = ("ok", "estimated")
"""Of trials that have a speed."""
MOST_CHANGES = 3
LIKELY = 0.8
"""What can be counted on: a choice that is cheaper by a per cent and misses every other time is
not the better one."""
OWN_FRAC = 0.56
"""Of the variance of a layout's error: what others of its model and cluster do not share. The rest
is the same for all of them. Of 24 published sweeps (``tests/laws/test_plan_choice_published.py``).
"""
ALIKE = 0.8
"""Two layouts cannot be told apart when the first is better with less than this probability."""
_NUMBER = re.compile(r"[\d.,]+")


class Objective(NamedTuple):
    """A metric and its better end."""

    metric: str
    direction: Direction
    quantile: float | None = None
    """Of the prediction's interval, towards the worse end; None: as predicted."""
    likely: float = LIKELY
    """Trials that fit and meet the targets with at least this probability go before others."""

    def value(self, trial: Trial) -> float:
        """Smaller is better."""
        value = trial.metrics[self.metric] * self.factor(trial)
        return value if self.direction == "minimize" else -value

    def factor(self, trial: Trial) -> float:
        """The metric at the quantile, over the metric as predicted."""
        if self.quantile is None or trial.spread is None:
            return 1.0
        return trial.spread.factor(self.quantile) ** follows_time(self.metric)

    def doubt(self, trial: Trial) -> int:
        """Tenths of probability that it lacks of ``likely``; 0 where none is known."""
        short = 0.0 if trial.likely is None else self.likely - trial.likely
        return max(0, math.ceil(10 * short))

    def key(self, trial: Trial) -> tuple[float, ...]:
        """Smaller is better: less doubt, then the metric; of equals fewer GPUs and nodes."""
        return (self.doubt(trial), self.value(trial), trial.gpus, trial.nodes, trial.number)


class Reason(NamedTuple):
    """Why trials are out: how many, what, and one of them: the closest, where one can say so."""

    trials: int
    what: str
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certainty:
    """How sure the first choice is, where past errors say so."""

    low: float
    high: float
    """Of the objective: nine of ten measured values would lie between."""
    first_beats_second: float | None
    """Probability; None where there is no second."""
    alike: int
    """Choices that cannot be told from the first, itself among them."""
    drawn: int = 0
    """Runs that each choice is the mean of, where chance is what differs; 0: past errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer."""

    objective: Objective
    ranked: tuple[Trial, ...]
    """Those that meet all targets, best first."""
    pareto: tuple[Trial, ...]
    """Of those that run on the GPUs allowed: no other is both faster and cheaper."""
    reasons: tuple[Reason, ...]
    kinds: tuple[Trial, ...] = ()
    """Where kinds of nodes are compared: the best of each that runs."""
    certainty: Certainty | None = None
    instead: Trial | None = None
    """Where none meets the targets: the nearest beyond the space that does."""

    @property
    def best(self) -> Trial | None:
        """The first choice."""
        return self.ranked[0] if self.ranked else None


def objective_of(
    trials: Iterable[Trial], minimize: str | None, maximize: str | None,
    known: Iterable[str] = METRICS, quantile: float | None = None, likely: float | None = None,
) -> Objective:  # fmt: skip
    """What was asked for, of the metrics ``known``, or the cost that the job has.

    Raises
    ------
    ScenarioError
        Both are given, or the metric is unknown.
    """
    if minimize and maximize:
        raise ScenarioError("give --minimize or --maximize, not both")
    asked = minimize or maximize
    if asked is not None and asked not in known:
        raise ScenarioError(Problem(message=f"unknown metric {asked!r}: {', '.join(known)}"))
    least = LIKELY if likely is None else likely
    if maximize:
        return Objective(maximize, "maximize", quantile, least)
    if minimize:
        return Objective(minimize, "minimize", quantile, least)
    run = [t for t in trials if t.status in RUNS]
    return Objective(_cost_of(run) or COSTS[-1], "minimize", quantile, least)


def _cost_of(run: Sequence[Trial]) -> str | None:
    """The first cost that all have: dollars, or of unequal numbers of tokens dollars per token."""
    costs = [c for c in COSTS if c != "usd" or _equal_work(run)]
    return next((c for c in costs if run and all(t.metrics.get(c) for t in run)), None)


def _equal_work(run: Iterable[Trial]) -> bool:
    """Whether all train on as many tokens: where a step's batch varies, equal steps do not."""
    pairs = [(t.metrics.get("usd"), t.metrics.get("usd_per_million_tokens")) for t in run]
    tokens = [usd / each for usd, each in pairs if usd and each]
    return not tokens or max(tokens) <= EQUAL_WORK * min(tokens)


def choose(
    sweep: Sweep, objective: Objective, *, likely: float | None = None,
    max_gpus: int | None = None, units: Mapping[str, str] = UNITS,
) -> Plan:  # fmt: skip
    """Rank what meets the targets; only what is ``likely`` to, if that is asked for.

    ``units`` are those of the job's metrics, in which values that miss a target are told.
    """
    trials = [_within(t, likely or 0.0, max_gpus) for t in sweep.trials]
    metric = objective.metric
    ranked = sorted((t for t in trials if t.meets and metric in t.metrics), key=objective.key)
    allowed = [t for t in trials if max_gpus is None or t.gpus <= max_gpus]
    front = pareto(allowed, objective)
    why = reasons(trials, objective, units)
    if sweep.unseen:
        tried = f"{len(trials):,} were, from an even sample towards better neighbours"
        why.append(Reason(sweep.unseen, "were not looked at", tried))
    return Plan(
        objective=objective, ranked=tuple(ranked), pareto=front, reasons=tuple(why),
        kinds=best_of_each(allowed, objective), certainty=certainty_of(ranked, objective),
    )  # fmt: skip


def certainty_of(ranked: Sequence[Trial], objective: Objective) -> Certainty | None:
    """Of the first of those ranked; None where nothing is known of its error."""
    sign = follows_time(objective.metric)
    if not ranked or ranked[0].spread is None or not sign:
        return None
    first, *others = ranked
    spread, predicted = ranked[0].spread, first.metrics[objective.metric]
    ends = sorted(predicted * spread.factor(q) ** sign for q in (0.05, 0.95))
    chances = [beats(first, other, objective) for other in others]
    return Certainty(
        low=ends[0], high=ends[1], first_beats_second=chances[0] if chances else None,
        alike=1 + sum(c is not None and c < ALIKE for c in chances), drawn=spread.drawn,
    )  # fmt: skip


def beats(first: Trial, second: Trial, objective: Objective) -> float | None:
    """Probability that the first would also be measured as the better one.

    Of means of draws: that it is the better one in the mean, which more draws would show. Errors of
    layouts of one model on nodes of one kind share most of their variance; on others,
    none is taken to be shared.
    """
    if first.spread is None or second.spread is None:
        return None
    own = OWN_FRAC if _machines(first) == _machines(second) else 1.0
    own = 1 / first.spread.drawn if first.spread.drawn else own
    worse = 1 if objective.direction == "minimize" else -1
    ratio = math.log(second.metrics[objective.metric] / first.metrics[objective.metric]) * worse
    shift = (second.spread.middle - first.spread.middle) * worse * follows_time(objective.metric)
    deviation = math.hypot(first.spread.deviation, second.spread.deviation) * math.sqrt(own)
    return NORMAL.cdf((ratio + shift) / deviation)


def _machines(trial: Trial) -> dict[str, object]:
    """What a choice says of the cluster beside how many nodes."""
    return {
        key: value for key, value in spread_out(trial.choice).items()
        if key.startswith("cluster.") and not is_nodes(key)
    }  # fmt: skip


def _within(trial: Trial, likely: float, max_gpus: int | None) -> Trial:
    missed = list(trial.missed)
    if max_gpus is not None and trial.gpus > max_gpus:
        missed.append(f"gpus <= {max_gpus}")
    if trial.likely is not None and trial.likely < likely and not trial.missed:
        missed.append(f"likely >= {likely:.0%}")
    return replace(trial, missed=tuple(missed))


def pareto(
    trials: Sequence[Trial], objective: Objective, statuses: Sequence[str] = ("ok",)
) -> tuple[Trial, ...]:
    """Of those that run: no other is better by `gain_of` and by cost; the cheapest first."""
    gain = gain_of(trials, objective)
    run = [t for t in trials if t.status in statuses and t.metrics.get(gain.metric) is not None]
    cost = _cost_of(run)
    if cost is None:
        return ()
    front: list[Trial] = []
    for trial in sorted(run, key=lambda t: (t.metrics[cost], gain.value(t), t.number)):
        if not front or gain.value(trial) < gain.value(front[-1]):
            front.append(trial)
    return tuple(front)


def best_of_each(
    trials: Iterable[Trial], objective: Objective, statuses: Sequence[str] = ("ok",)
) -> tuple[Trial, ...]:
    """The best of each kind of nodes that runs: one that meets the targets, or most of them.

    None where all are of one kind.
    """
    run = [t for t in trials if t.status in statuses and objective.metric in t.metrics]
    best: dict[str, Trial] = {}
    for trial in sorted(run, key=lambda t: (len(t.missed), *objective.key(t))):
        kind = {k: v for k, v in spread_out(trial.choice).items() if is_node(k)}
        best.setdefault(repr(kind), trial)
    return tuple(best.values()) if len(best) > 1 else ()


def gain_of(trials: Iterable[Trial], objective: Objective) -> Objective:
    """What more money buys: throughput of a training job, shorter waits for what is served.

    Otherwise what was asked for, or time.
    """
    for name, better in GAINS.items():
        if any(name in t.metrics for t in trials):
            return Objective(name, better)
    return Objective("seconds", "minimize") if objective.metric in COSTS else objective


def reasons(
    trials: Sequence[Trial], objective: Objective, units: Mapping[str, str] = UNITS
) -> list[Reason]:
    """Of those that do not meet the targets, the commonest first; a trial counts once."""
    found = []
    big = [t for t in trials if t.status == "out_of_memory"]
    if big:
        played = [t for t in big if t.strategy] or big  # of the others only a lower bound is known
        least = min(played, key=lambda t: (t.metrics.get("gpu_mem_peak", 9e9), t.number))
        share = least.metrics.get("gpu_mem_peak", 0.0)
        example = f"closest: {share:.0%} of it, {said(least.choice)}"
        found.append(Reason(len(big), "exceed GPU or host memory", example))
    missed = Counter(t.missed[0] for t in trials if t.status == "ok" and t.missed)
    for what, count in missed.items():
        name, op = (*what.split(" "), "")[:2]
        these = [t for t in trials if t.status == "ok" and t.missed and t.missed[0] == what]
        example = _closest(these, name, units, more=op.startswith(">"))
        found.append(Reason(count, f"miss {what}", example))
    for status, words in (
        ("refused", "are refused"),
        ("failed", "failed"),
        ("estimated", "were not played"),
    ):
        alike: dict[str, list[Trial]] = {}
        for trial in trials:
            if trial.status == status:
                what = trial.why.partition(";")[0]  # what would do instead varies
                alike.setdefault(_NUMBER.sub("n", what), []).append(trial)
        found += [Reason(len(a), words, _example(a, objective)) for a in alike.values()]
    return sorted(found, key=lambda r: -r.trials)


def _example(trials: Sequence[Trial], objective: Objective) -> str:
    """Why, and the best of them where they were estimated; otherwise the first."""
    measured = [t for t in trials if objective.metric in t.metrics]
    shown = min(measured, key=objective.key) if measured else trials[0]
    which = f"closest: {said(shown.choice)}" if measured else said(shown.choice)
    return "; ".join(filter(None, (shown.why, which)))


def _closest(trials: Sequence[Trial], name: str, units: Mapping[str, str], *, more: bool) -> str:
    values = [(t.likely if name == "likely" else t.metrics.get(name), t) for t in trials]
    have = [(value, t) for value, t in values if value is not None]
    if not have:
        return said(trials[0].choice)
    value, best = min(have, key=lambda v: (v[0] * (-1 if more else 1), v[1].number))
    unit = "share" if name == "likely" else units.get(name, "count")
    return f"closest: {show(value, unit)}, {said(best.choice)}"


def smallest_change(
    scenario: AnyScenario, sweep: Sweep, space: Space, limits: tuple[Target, ...],
    max_gpus: int | None = None,
) -> Trial | None:  # fmt: skip
    """The first trial beyond the space that meets the targets: one key after the other is moved.

    It starts from the trials that came nearest; a job under DDP may be sharded; more nodes are
    tried last.
    """
    starts = sorted(
        sweep.trials,
        key=lambda t: (t.status != "ok", len(t.missed), t.metrics.get("gpu_mem_peak", 9.0)),
    )[:MOST_CHANGES]
    beyond = {key: space.outside(key) for key in space.values}
    if isinstance(scenario, Scenario) and scenario.strategy.engine == "ddp":
        beyond.setdefault(ENGINE, ("fsdp",))
    number = sweep.size
    for key in sorted(beyond, key=is_nodes):
        for value in beyond[key]:
            for start in starts:
                choice = {**start.choice, key: value}
                trial = _within(played(scenario, Point(number, choice), limits), 0.0, max_gpus)
                number += 1
                if trial.meets:
                    return trial
    return None
