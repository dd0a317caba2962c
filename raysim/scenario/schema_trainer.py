"""A run of Ray Train as a scenario says it: ``TorchTrainer(...).fit()`` around a training job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysim.scenario.quantities import Bytes, PositiveCount, Seconds
from raysim.scenario.schema import ModelSection
from raysim.scenario.schema_train import WORKERS_MAX, TrainSection
from raysim.scenario.section import Section

Workers = Annotated[int, Field(ge=1, le=WORKERS_MAX)]
Limit = Annotated[int, Field(ge=-1, le=1_000_000)]


class FailureConfigSection(Section):
    """``ray.train.FailureConfig``; -1: without limit."""

    max_failures: Limit = Field(0, description="Of workers.")
    controller_failure_limit: Limit = Field(-1, description="Of starts of the worker group.")
    max_preemption_failures: Limit = Field(-1, description="Of nodes that were taken back.")
    preemption_grace: Seconds = Field(
        0.0, description="`preemption_grace_s`: how long ranks go on past the deadline."
    )


class TrainerSection(Section):
    """Ray Train's controller around a training job: starts, reports, saves, failures."""

    model: ModelSection = Field(description="The model, as in a scenario of its own.")
    train: TrainSection = Field(
        description="The job, as in a scenario of its own; its steps are predicted from it."
    )
    num_workers: Workers | tuple[Workers, Workers] = Field(
        description="Ranks; or the fewest and the most, of an elastic run."
    )
    resources_per_worker: dict[str, Annotated[float, Field(ge=0, le=1e9)]] | None = Field(
        None, description="By default a GPU and no CPU."
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="Of the placement group."
    )
    failure_config: FailureConfigSection = Field(
        default_factory=FailureConfigSection, description="How often the run begins again."
    )
    num_to_keep: PositiveCount | None = Field(None, description="Checkpoints kept; all by default.")
    report_every: PositiveCount | None = Field(
        None, description="Steps between reports of metrics alone, beside those of checkpoints."
    )
    on_preemption: Literal["ignore", "checkpoint"] = Field(
        "ignore",
        description="checkpoint: the loop asks for preemption notices and saves once there is one.",
    )
    weights: Bytes | None = Field(
        None, description="Read from the store by every node before the first step of a fresh run."
    )
    elastic_resize_monitor_interval: Seconds | None = Field(
        None, description="How often an elastic run considers its size; 60 s by default."
    )

    @model_validator(mode="after")
    def _consistent(self) -> TrainerSection:
        if isinstance(self.num_workers, tuple) and self.num_workers[0] > self.num_workers[1]:
            raise ValueError("num_workers: give the fewest first")
        if self.train.workers is not None:
            raise ValueError("train.workers is num_workers here; remove it")
        for key in ("noise", "failures", "exact", "resume"):
            if getattr(self.train, key):
                raise ValueError(
                    f"train.{key} has no effect here: say what fails under `spot` and `faults`"
                )
        every = self.train.checkpoint.every or self.train.checkpoint_every
        if every == "optimal":
            raise ValueError("checkpoint.every: optimal has no effect here; give a time")
        if self.on_preemption == "checkpoint" and self.train.checkpoint.storage is None:
            raise ValueError(
                "on_preemption: checkpoint needs checkpoint.storage: "
                "a node's own disk goes with the node"
            )
        return self

    @property
    def most_workers(self) -> int:
        """The largest group."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]
