"""One trial: its configuration, where it stands, what it last reported.

Real counterpart: ``ray/tune/experiment/trial.py`` (ray 2.60). Not modelled: exports, placeholders
of configurations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from raysim.raylibs.tune.resources import PlacementGroupFactory

Status = Literal["PENDING", "RUNNING", "PAUSED", "TERMINATED", "ERROR"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialCheckpoint:
    """A saved state: what restoring it takes, and who made it."""

    trial_id: str
    iteration: int
    size_bytes: int
    metrics: dict[str, Any]
    state: Any = None
    """What the trainable needs to go on from it."""


class Trial:
    """Mutable, the controller's own; schedulers and searchers read it.

    Parameters
    ----------
    trial_id
        ``ffff_00000``.
    config
        Every value chosen.
    resources
        Its placement group.
    experiment_tag
        Number and chosen values, as in directory names.
    evaluated_params
        Those that were sampled or came from a grid.
    trainable_name
        Of what it runs.
    """

    PENDING: Status = "PENDING"
    RUNNING: Status = "RUNNING"
    PAUSED: Status = "PAUSED"
    TERMINATED: Status = "TERMINATED"
    ERROR: Status = "ERROR"

    __slots__ = (
        "checkpoint", "checkpoints", "config", "custom_dirname", "custom_trial_name", "ended_ns",
        "error", "evaluated_params", "experiment_tag", "is_saving", "last_result", "last_result_ns",
        "n_checkpoints", "n_results", "num_failures", "order", "path", "resources", "results",
        "runs", "started_ns", "status", "trainable_name", "trial_id",
    )  # fmt: skip

    def __init__(
        self,
        trial_id: str,
        config: dict[str, Any],
        *,
        resources: PlacementGroupFactory | None = None,
        experiment_tag: str = "",
        evaluated_params: dict[str, Any] | None = None,
        trainable_name: str = "",
    ) -> None:
        self.trial_id = trial_id
        self.trainable_name = trainable_name
        self.config = config
        self.resources = resources or PlacementGroupFactory()
        self.experiment_tag = experiment_tag
        self.evaluated_params = evaluated_params or {}
        self.status: Status = "PENDING"
        self.order = 0
        """Its place among the controller's trials."""
        self.custom_trial_name: str | None = None
        self.custom_dirname: str | None = None
        self.path: str | None = None
        """Of its directory, if it has one."""
        self.last_result: dict[str, Any] = {}
        self.last_result_ns = -1
        """When the driver dealt with it."""
        self.n_results = 0
        self.results: list[dict[str, Any]] = []
        """All, if the experiment keeps them."""
        self.checkpoint: TrialCheckpoint | None = None
        self.checkpoints: list[TrialCheckpoint] = []
        """Those kept in storage, the worst first."""
        self.n_checkpoints = 0
        """Made so far."""
        self.is_saving = False
        self.num_failures = 0
        self.error: Any = None
        self.started_ns: int | None = None
        self.ended_ns: int | None = None
        self.runs: list[tuple[int, int]] = []
        """When it held an actor: (from, to), in ns."""

    def is_finished(self) -> bool:
        """Ended, well or not."""
        return self.status in ("TERMINATED", "ERROR")

    def __str__(self) -> str:
        """As programs print it; with the environment of RLlib's."""
        if self.custom_trial_name:
            return self.custom_trial_name
        env = self.config.get("env")
        named = "" if env is None else f"_{getattr(env, '__name__', env)}"
        return f"{self.trainable_name}{named}_{self.trial_id}".replace("/", "_")

    def __repr__(self) -> str:
        """Its id and status."""
        return f"Trial({self.trial_id}, {self.status})"
