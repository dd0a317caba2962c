"""RLlib's PPO or IMPALA by numbers: simulators on CPUs, learners on GPUs.

Real counterpart: a user's script around ``config.build().train()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raylibs.report import Input, LibraryReport, Table, Unit
from raysim.raylibs.rllib import impala, ppo
from raysim.raylibs.rllib.config import AlgorithmConfig
from raysim.raylibs.rllib.over_time import charts_of
from raysim.raylibs.rllib.result import TrainingResult
from raysim.raylibs.warnings import PlannerWarning

HALF = 0.5
MUCH_DROPPED = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RlJob:
    """Train on so many env steps."""

    config: AlgorithmConfig
    env_steps: int
    kind: str = "rl"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """What targets may limit."""
        return {
            "env_steps_per_s": "per_s", "seconds_to_finish": "seconds", "learning": "share",
            "dropped": "share",
        }  # fmt: skip

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """The driver."""
        train = ppo.train if self.config.algorithm == "PPO" else impala.train
        result: TrainingResult = yield from train(
            process, self.config, streams, env_steps=self.env_steps
        )
        return self._report(result)

    def _report(self, result: TrainingResult) -> LibraryReport:
        config = self.config
        learn_s = sum(i.learn_s for i in result.iterations)
        learning = learn_s / result.train_s if result.train_s else 0.0
        dropped = result.env_steps_dropped / max(result.env_steps_sampled, 1)
        return LibraryReport(
            kind="rl",
            ok=result.env_steps_trained >= self.env_steps,
            text=f"{config.algorithm}: {result.env_steps_trained:,} env steps in "
            f"{len(result.iterations):,} iterations, {result.env_steps_per_s:,.0f} steps/s.",
            metrics={
                "env_steps_per_s": result.env_steps_per_s,
                "seconds_to_finish": result.took_s,
                "learning": learning,
                "dropped": dropped,
            },
            tables=(_phases(config, result),),
            bound_by=self._bound_by(learning),
            would_help=self._would_help(learning),
            warnings=self._warnings(result, dropped),
            inputs=_INPUTS,
            simplifications=("Nothing is learned: env steps are counted, rewards are not.",),
            detail={"policy_lag": result.policy_lag, "runner_failures": result.runner_failures},
            charts=charts_of(result, config.algorithm),
        )

    def _bound_by(self, learning: float) -> str:
        if self.config.algorithm == "IMPALA":
            if learning > 1 - MUCH_DROPPED:
                return "The learners: they are busy all the time."
            return "The simulators: learners wait for batches."
        if learning > HALF:
            return "The update: simulators stand still meanwhile."
        return "The simulators: learners stand still meanwhile."

    def _would_help(self, learning: float) -> tuple[str, ...]:
        """The phases are in turn in PPO: what halving one of them would bring."""
        if self.config.algorithm == "IMPALA":
            return ()
        return (
            f"Twice the env runners: up to {1 / (1 - (1 - learning) / 2) - 1:.0%} more steps/s.",
            f"Twice as fast an update: up to {1 / (1 - learning / 2) - 1:.0%} more steps/s.",
        )

    def _warnings(self, result: TrainingResult, dropped: float) -> tuple[PlannerWarning, ...]:
        found = []
        if dropped > MUCH_DROPPED:
            late = self.config.algorithm == "PPO"
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
        if result.runner_failures and not self.config.restart_failed_env_runners:
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
