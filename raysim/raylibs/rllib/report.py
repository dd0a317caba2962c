"""What training came to, for summaries and pages to show."""

from __future__ import annotations

from typing import Any

from raysim.raylibs.report import Input, LibraryReport, Table
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.over_time import charts_of
from raysim.raylibs.rllib.result import TrainingResult
from raysim.raylibs.warnings import PlannerWarning

HALF = 0.5
MUCH_DROPPED = 0.05


def report_of(config: AlgorithmConfig, result: TrainingResult, *, ok: bool) -> LibraryReport:
    """Of one algorithm, from its start to its end."""
    learn_s = sum(i.learn_s for i in result.iterations)
    learning = learn_s / result.train_s if result.train_s else 0.0
    dropped = result.env_steps_dropped / max(result.env_steps_sampled, 1)
    return LibraryReport(
        kind="rl",
        ok=ok,
        text=f"{config.algorithm}: {result.env_steps_trained:,} env steps in "
        f"{len(result.iterations):,} iterations, {result.env_steps_per_s:,.0f} steps/s.",
        metrics={
            "env_steps_per_s": result.env_steps_per_s,
            "seconds_to_finish": result.took_s,
            "learning": learning,
            "dropped": dropped,
        },
        tables=(_phases(config, result),),
        bound_by=_bound_by(config, learning),
        would_help=_would_help(config, learning),
        warnings=_warnings(config, result, dropped),
        inputs=_INPUTS if config.price is None else _OF_PROGRAMS,
        simplifications=("Nothing is learned: env steps are counted, rewards are not.",),
        detail={"policy_lag": result.policy_lag, "runner_failures": result.runner_failures},
        charts=charts_of(result, config.algorithm),
    )


def _bound_by(config: AlgorithmConfig, learning: float) -> str:
    if config.algorithm != "PPO":
        if learning > 1 - MUCH_DROPPED:
            return "The learners: they are busy all the time."
        return "The simulators: learners wait for batches."
    if learning > HALF:
        return "The update: simulators stand still meanwhile."
    return "The simulators: learners stand still meanwhile."


def _would_help(config: AlgorithmConfig, learning: float) -> tuple[str, ...]:
    """The phases are in turn in PPO: what halving one of them would bring."""
    if config.algorithm != "PPO":
        return ()
    return (
        f"Twice the env runners: up to {1 / (1 - (1 - learning) / 2) - 1:.0%} more steps/s.",
        f"Twice as fast an update: up to {1 / (1 - learning / 2) - 1:.0%} more steps/s.",
    )


def _warnings(
    config: AlgorithmConfig, result: TrainingResult, dropped: float
) -> tuple[PlannerWarning, ...]:
    found = []
    if dropped > MUCH_DROPPED:
        late = config.algorithm == "PPO"
        found.append(
            PlannerWarning(
                code="rl-dropped",
                cause=f"{dropped:.0%} of the env steps are dropped: "
                + ("runners are late." if late else "learners have no room for them."),
                fix="Raise sample_timeout_s or shorten fragments."
                if late
                else "Use fewer env runners, or more learners.",
            )
        )
    if result.runner_failures and not config.restart_failed_env_runners:
        found.append(
            PlannerWarning(
                code="rl-runners-lost",
                cause=f"{result.runner_failures} env runners failed and did not come back.",
                fix="Set restart_failed_env_runners.",
            )
        )
    return tuple(found)


def _phases(config: AlgorithmConfig, result: TrainingResult) -> Table:
    rows: list[tuple[Any, ...]] = [("start", (result.ready_ns - result.began_ns) / 1e9)]
    count = len(result.iterations)
    if config.algorithm == "PPO" and count:
        for name in ("sample_s", "learn_s", "sync_s"):
            mean_s = sum(getattr(i, name) for i in result.iterations) / count
            rows.append((f"{name[:-2]}, each iteration", mean_s))
    elif count:
        rows.append(("learners' work, each iteration", sum(i.learn_s for i in result.iterations)
                     / count))  # fmt: skip
    return Table(title="phases", columns=(("phase", "text"), ("time", "seconds")), rows=tuple(rows))


_INPUTS = (
    Input(name="imports of an actor", value="5 core-s", basis="assumed", source="rllib and torch"),
    Input(name="driver, per answer of a runner", value="0.3 ms", basis="assumed", source=""),
)
_SOURCE = "RLlib 2.60, PPO on CartPole, an EPYC of 2025 (raylibs/rllib/costs.py)"
_OF_PROGRAMS = (
    Input(name="RLlib around an env step", value="0.60 ms", basis="measured", source=_SOURCE),
    Input(name="RLlib around a gradient step", value="2.8 ms", basis="measured", source=_SOURCE),
    Input(name="imports of an actor", value="2.6 core-s", basis="measured", source=_SOURCE),
    Input(name="driver, per answer of a runner", value="0.5 ms", basis="assumed", source=""),
)
