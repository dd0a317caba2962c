"""Configurations as programs write them.

Real counterparts (ray 2.60): ``ray/tune/tune_config.py``, ``ray/air/config.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass
class FailureConfig:
    """``tune.FailureConfig``."""

    max_failures: int = 0
    fail_fast: bool | str = False

    def __post_init__(self) -> None:
        """As Ray checks."""
        if not isinstance(self.fail_fast, bool) and self.fail_fast.upper() != "RAISE":
            raise ValueError(f"fail_fast must be one of {{bool, 'raise'}}. Got {self.fail_fast}.")
        if self.fail_fast and self.max_failures != 0:
            raise ValueError(f"max_failures must be 0 if fail_fast={self.fail_fast!r}.")

    @property
    def raises(self) -> bool:
        """``fit`` raises what a trial has."""
        return not isinstance(self.fail_fast, bool)


@dataclass
class CheckpointConfig:
    """``tune.CheckpointConfig``."""

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str | None = "max"
    checkpoint_frequency: int | None = 0
    checkpoint_at_end: bool | None = None

    def __post_init__(self) -> None:
        """As Ray checks."""
        if self.num_to_keep is not None and self.num_to_keep <= 0:
            raise ValueError(
                f"Received invalid num_to_keep: {self.num_to_keep}. "
                "Must be None or an integer >= 1."
            )
        if self.checkpoint_score_order not in {"max", "min"}:
            raise ValueError('checkpoint_score_order must be either "max" or "min".')
        if self.checkpoint_frequency is not None and self.checkpoint_frequency < 0:
            raise ValueError(f"checkpoint_frequency must be >=0, got {self.checkpoint_frequency}")


@dataclass
class SyncConfig:
    """``tune.SyncConfig``: accepted, of no effect."""

    sync_period: int = 300
    sync_timeout: int = 1800
    sync_artifacts: bool = False
    sync_artifacts_on_checkpoint: bool = True


@dataclass
class ResumeConfig:
    """``tune.ResumeConfig``: what a restored experiment does with its trials."""

    class ResumeType(StrEnum):
        """From the last checkpoint, from the beginning, or not at all."""

        RESUME = "resume"
        RESTART = "restart"
        SKIP = "skip"

    finished: str = ResumeType.SKIP
    unfinished: str = ResumeType.RESUME
    errored: str = ResumeType.SKIP


@dataclass
class RunConfig:
    """``tune.RunConfig``."""

    name: str | None = None
    storage_path: str | None = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    sync_config: SyncConfig | None = None
    verbose: Any = None
    stop: Any = None
    callbacks: list[Any] | None = None
    progress_reporter: Any = None
    log_to_file: Any = False


def space_of(said: Any) -> dict[str, Any]:
    """A dictionary, or a configuration of RLlib as one."""
    if said is not None and not isinstance(said, dict) and not hasattr(said, "to_dict"):
        raise ValueError(
            f"The `param_space` passed to the `Tuner` must be a dict. Got '{type(said)}' instead."
        )
    found: dict[str, Any] = said.to_dict() if hasattr(said, "to_dict") else said or {}
    return found


@dataclass
class TuneConfig:
    """``tune.TuneConfig``."""

    mode: str | None = None
    metric: str | None = None
    search_alg: Any = None
    scheduler: Any = None
    num_samples: int = 1
    max_concurrent_trials: int | None = None
    time_budget_s: Any = None
    reuse_actors: bool = False
    trial_name_creator: Any = None
    trial_dirname_creator: Any = None
    chdir_to_trial_dir: Any = "DEPRECATED"
