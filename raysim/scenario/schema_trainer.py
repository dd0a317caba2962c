"""A run of Ray Train as a scenario says it: ``TorchTrainer(...).fit()`` around a training job."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysim.scenario.quantities import Bytes, PositiveCount, Seconds, Share
from raysim.scenario.schema import ModelSection
from raysim.scenario.schema_train import WORKERS_MAX, StorageSection, TrainSection
from raysim.scenario.section import Section, shorthand

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


class LoopCheckpointSection(Section):
    """What `report(checkpoint=...)` of a loop by numbers saves."""

    size: Bytes = Field(description="Of all ranks together, such as 840GB.")
    every_steps: PositiveCount = Field(description="Steps between saves.")
    writers: Literal["all", "rank0"] = Field(
        "all", description="all: each rank its own part; rank0: gathered by the first."
    )
    readers: Literal["own", "whole"] = Field(
        "own", description="What each rank reads to go on: its own part, or all of it."
    )
    gather: Seconds = Field(0.0, description="Until rank 0 has everything.")
    mode: Literal["SYNC", "ASYNC", "NO_UPLOAD"] = Field(
        "SYNC", description="`checkpoint_upload_mode`."
    )
    storage: Annotated[StorageSection, shorthand("name")] | None = Field(
        None, description="`storage_path`: disk (by default each node's first), s3, or a store."
    )


class LoopSection(Section):
    """A training loop said by numbers."""

    steps: PositiveCount = Field(le=10**9, description="In all.")
    step: Seconds = Field(gt=0, description="One step of the largest group.")
    step_cv: Share = Field(0.0, description="Spread of a step's time, over its mean.")
    fixed_batch: bool = Field(
        False,
        description="The batch is the group's: steps of smaller groups take longer in proportion. "
        "Otherwise it is each rank's.",
    )
    samples_per_step: PositiveCount | None = Field(
        None, description="Samples, or tokens, of one step of the largest group."
    )
    set_up: Seconds = Field(0.0, description="Before the first step, beside Ray's own start.")
    batches_per_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="What the data pipeline makes for each rank; by default it never waits."
    )
    checkpoint: LoopCheckpointSection | None = Field(None, description="By default none is saved.")


class TrainerSection(Section):
    """Ray Train's controller around a training job: starts, reports, saves, failures."""

    model: ModelSection | None = Field(None, description="The model, as in a scenario of its own.")
    train: TrainSection | None = Field(
        None, description="The job, as in a scenario of its own; its steps are predicted from it."
    )
    loop: LoopSection | None = Field(
        None, description="In place of both: a loop said by numbers, of any framework."
    )
    use_gpu: bool = Field(True, description="Each worker has a GPU; false: a CPU.")
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
        if self.loop is not None and (self.model or self.train) is not None:
            raise ValueError("give loop, or model and train")
        if self.loop is None and (self.model is None or self.train is None):
            raise ValueError("needs model and train, or loop")
        self._check_saves()
        if self.train is not None:
            self._check_train(self.train)
        return self

    def _check_saves(self) -> None:
        saves = self.loop if self.loop is not None else self.train
        checkpoint = saves.checkpoint if saves is not None else None
        if self.on_preemption == "ignore":
            return
        if checkpoint is None or checkpoint.storage is None:
            raise ValueError(
                "on_preemption: checkpoint needs checkpoint.storage: "
                "a node's own disk goes with the node"
            )

    def _check_train(self, train: TrainSection) -> None:
        if not self.use_gpu:
            raise ValueError("use_gpu: false needs loop; steps of train are those of GPUs")
        if train.workers is not None:
            raise ValueError("train.workers is num_workers here; remove it")
        for key in ("noise", "failures", "exact", "resume"):
            if getattr(train, key):
                raise ValueError(
                    f"train.{key} has no effect here: say what fails under `spot` and `faults`"
                )
        if (train.checkpoint.every or train.checkpoint_every) == "optimal":
            raise ValueError("checkpoint.every: optimal has no effect here; give a time")

    @property
    def most_workers(self) -> int:
        """The largest group."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]
