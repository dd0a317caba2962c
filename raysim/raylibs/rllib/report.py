"""What training came to, for summaries and pages to show."""

from __future__ import annotations

from typing import Any

from raysim.raylibs.report import Input, LibraryReport, Table
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.over_time import charts_of, phases_of
from raysim.raylibs.rllib.result import TrainingResult
from raysim.raylibs.warnings import PlannerWarning

HALF = 0.5
MUCH_DROPPED = 0.05
ASYNCHRONOUS = ("IMPALA", "APPO")
REPLAY = ("DQN", "SAC")


def report_of(config: AlgorithmConfig, result: TrainingResult, *, ok: bool) -> LibraryReport:
    """Of one algorithm, from its start to its end."""
    learn_s = sum(i.learn_s for i in result.iterations)
    learning = learn_s / result.train_s if result.train_s else 0.0
    dropped = result.env_steps_dropped / max(result.env_steps_sampled, 1)
    replays = config.algorithm in REPLAY  # which trains on a step many times
    steps = result.env_steps_sampled if replays else result.env_steps_trained
    rate_per_s = steps / result.train_s if result.train_s else 0.0
    return LibraryReport(
        kind="rl",
        ok=ok,
        text=f"{config.algorithm}: {steps:,} env steps in "
        f"{len(result.iterations):,} iterations, {float(f'{rate_per_s:.3g}'):,.0f} steps/s.",
        metrics={
            "env_steps_per_s": rate_per_s,
            "seconds_to_finish": result.took_s,
            "learning": learning,
            "dropped": dropped,
        },
        tables=(_phases(config, result),),
        bound_by=_bound_by(config, result, learning),
        would_help=_would_help(config, result, learning),
        warnings=_warnings(config, result, dropped),
        inputs=_inputs(config),
        simplifications=("Nothing is learned: env steps are counted, rewards are not.",),
        detail={"policy_lag": result.policy_lag, "runner_failures": result.runner_failures},
        charts=charts_of(result, config.algorithm),
    )


def _bound_by(config: AlgorithmConfig, result: TrainingResult, learning: float) -> str:
    if config.algorithm in ASYNCHRONOUS:
        if learning > 1 - MUCH_DROPPED:
            return "The learners: they are busy all the time."
        return "The simulators: learners wait for batches."
    if learning > HALF:
        return "The update: simulators stand still meanwhile."
    if config.algorithm in REPLAY and _buffer_s(result) > _sample_s(result):
        return "RLlib's replay buffer: simulators and learners stand still meanwhile."
    return "The simulators: learners stand still meanwhile."


def _would_help(
    config: AlgorithmConfig, result: TrainingResult, learning: float
) -> tuple[str, ...]:
    """Phases are in turn but in IMPALA: what halving one of them would bring."""
    if config.algorithm in ASYNCHRONOUS or not result.train_s:
        return ()
    sampling = 1 - learning
    if config.algorithm in REPLAY:
        sampling = _sample_s(result) / result.train_s
    return (
        f"Twice the env runners: up to {1 / (1 - sampling / 2) - 1:.0%} more steps/s.",
        f"Twice as fast an update: up to {1 / (1 - learning / 2) - 1:.0%} more steps/s.",
    )


def _buffer_s(result: TrainingResult) -> float:
    return sum(i.buffer_s for i in result.iterations)


def _sample_s(result: TrainingResult) -> float:
    return sum(i.sample_s for i in result.iterations)


def _warnings(
    config: AlgorithmConfig, result: TrainingResult, dropped: float
) -> tuple[PlannerWarning, ...]:
    found = []
    if dropped > MUCH_DROPPED:
        late = config.algorithm not in ASYNCHRONOUS
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
    if config.algorithm not in ASYNCHRONOUS and count:
        for name in phases_of(config.algorithm):
            mean_s = sum(getattr(i, f"{name}_s") for i in result.iterations) / count
            rows.append((f"{name}, each iteration", mean_s))
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
_OF_DQN = "RLlib 2.60, DQN on four numbers, an EPYC of 2025 (raylibs/rllib/costs.py)"
_OF_REPLAY = (
    Input(name="RLlib around an env step", value="0.60 ms", basis="measured", source=_SOURCE),
    Input(name="a call of an env runner", value="3.3 ms", basis="measured", source=_OF_DQN),
    Input(name="an item of the replay buffer", value="71 us", basis="measured", source=_OF_DQN),
    Input(name="imports of an actor", value="2.6 core-s", basis="measured", source=_SOURCE),
)


def _inputs(config: AlgorithmConfig) -> tuple[Input, ...]:
    if config.price is None:
        return _INPUTS
    return _OF_REPLAY if config.algorithm in REPLAY else _OF_PROGRAMS
