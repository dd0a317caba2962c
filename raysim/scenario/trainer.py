"""A ``trainer`` job: its training job is read as a scenario of its own, once per size of the group.

Model, DeepSpeed's JSON and layout go through the same readers as those of a training scenario, on
this scenario's cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.raylibs.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from raysim.scenario.documents import Document, KeyPath, value_at
from raysim.scenario.schema_trainer import TrainerSection
from raysim.workloads.train_job import TrainJob
from raysim.workloads.trainer_job import TrainerJob

_FILES: tuple[KeyPath, ...] = (
    ("model", "from"), ("train", "deepspeed"), ("train", "fsdp"), ("train", "megatron"),
)  # fmt: skip


def read_trainer(
    said: TrainerSection, folder: Path, document: Document, inputs: dict[KeyPath, Path]
) -> TrainerJob:
    """The run.

    Raises
    ------
    ScenarioError
        What a training scenario of these files would be refused for, at the largest size or the
        smallest.
    """
    at = _place(said, document, inputs)
    for path in _FILES:
        name = value_at(document.data, (*at, *path))
        if isinstance(name, str):
            inputs[*at, *path] = folder / name
    training = _Training(folder, document, at)
    least = said.num_workers if isinstance(said.num_workers, int) else said.num_workers[0]
    for size in {said.most_workers: None, least: None}:
        training(size)
    failure = said.failure_config
    return TrainerJob(
        job_of=training,
        scaling_config=ScalingConfig(
            num_workers=said.num_workers,
            use_gpu=True,
            resources_per_worker=said.resources_per_worker,
            placement_strategy=said.placement_strategy,
            elastic_resize_monitor_interval_s=said.elastic_resize_monitor_interval,
        ),
        run_config=RunConfig(
            failure_config=FailureConfig(
                max_failures=failure.max_failures,
                controller_failure_limit=failure.controller_failure_limit,
                max_preemption_failures=failure.max_preemption_failures,
                preemption_grace_s=failure.preemption_grace,
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=said.num_to_keep),
        ),
        report_every=said.report_every,
        on_preemption=said.on_preemption,
        weights_bytes=said.weights or 0,
        spot=bool(document.data.get("spot")),
    )


def _place(said: TrainerSection, document: Document, inputs: dict[KeyPath, Path]) -> KeyPath:
    """Where the section stands, the first such that has not been read."""
    for i, job in enumerate(document.data["jobs"]):
        at: KeyPath = ("jobs", i, "trainer")
        unread = (*at, "model", "from") not in inputs
        if unread and "trainer" in job and TrainerSection.model_validate(job["trainer"]) == said:
            return at
    raise AssertionError("a trainer that stands nowhere")


class _Training:
    """Training jobs of a trainer by the size of its group, read when they are asked for."""

    def __init__(self, folder: Path, document: Document, at: KeyPath) -> None:
        self._folder = folder
        self._document = document
        self._at = at

    def __call__(self, num_workers: int) -> tuple[TrainJob, ClusterSpec]:
        from raysim.scenario.build import build_job
        from raysim.scenario.load import Scenario, from_mapping

        root = self._document.data
        written = value_at(root, self._at)
        data: dict[str, Any] = {
            "cluster": root["cluster"],
            "model": written["model"],
            "jobs": [{"train": {**written["train"], "workers": num_workers}}],
        }
        if "profile" in root:
            data["profile"] = root["profile"]
        try:
            scenario = from_mapping(data, folder=self._folder)
            assert isinstance(scenario, Scenario), "a training job is no program"
            return build_job(scenario), scenario.cluster
        except ScenarioError as error:
            raise ScenarioError(self._placed(error.problems)) from None

    def _placed(self, problems: tuple[Problem, ...]) -> Iterator[Problem]:
        """Problems of the training scenario, where this one says what they are about."""
        for problem in problems:
            steps = (problem.key or "").split(".")
            if problem.where is not None and problem.where.file != "scenario":
                yield problem
            elif steps[0] in ("model", "train"):
                yield self._document.problem((*self._at, *steps), problem.message)
            else:
                yield self._document.problem(self._at, problem.message)
