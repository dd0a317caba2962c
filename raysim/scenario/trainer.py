"""A ``trainer`` job: a loop said by numbers, or a training job that is predicted.

A training job is read as a scenario of its own, once per size of the group: model, DeepSpeed's JSON
and layout go through the same readers as those of a training scenario, on this scenario's cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware.cluster import ClusterSpec
from raysim.raylibs.report import Input
from raysim.raylibs.train.config import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from raysim.raylibs.train.job import TrainRun
from raysim.raylibs.train.loop import CheckpointSpec, ConstantStep, SetUp, TrainLoop
from raysim.raylibs.train.shards import ConstantRate
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker import TrainFunction
from raysim.scenario.documents import Document, KeyPath, value_at
from raysim.scenario.schema_trainer import LoopSection, TrainerSection
from raysim.scenario.storage import storage_of
from raysim.workloads.train_job import TrainJob
from raysim.workloads.trainer_job import TrainerJob

_FILES: tuple[KeyPath, ...] = (
    ("model", "from"), ("train", "deepspeed"), ("train", "fsdp"), ("train", "megatron"),
)  # fmt: skip


def read_trainer(
    said: TrainerSection, at: KeyPath, folder: Path, document: Document,
    inputs: dict[KeyPath, Path],
) -> TrainerJob | TrainRun:  # fmt: skip
    """The run.

    Raises
    ------
    ScenarioError
        What a training scenario of these files would be refused for, at the largest size or the
        smallest; or no storage has that name.
    """
    if said.loop is not None:
        return _by_numbers(said, said.loop, at, document)
    note_files(at, folder, document, inputs)
    training = TrainingOf(folder, document, at)
    least = said.num_workers if isinstance(said.num_workers, int) else said.num_workers[0]
    for size in {said.most_workers: None, least: None}:
        training(size)
    return TrainerJob(
        job_of=training,
        scaling_config=_scaling(said),
        run_config=_run_config(said),
        report_every=said.report_every,
        on_preemption=said.on_preemption,
        weights_bytes=said.weights or 0,
        spot=bool(document.data.get("spot")),
    )


def _by_numbers(
    said: TrainerSection, loop: LoopSection, at: KeyPath, document: Document
) -> TrainRun:
    saves = loop.checkpoint
    most, samples = said.most_workers, loop.samples_per_step
    storage, checkpoint = None, None
    if saves is not None:
        path = (*at, "loop", "checkpoint", "storage")
        storage = storage_of(saves.storage, path, document)
        checkpoint = CheckpointSpec(
            total_bytes=saves.size, writers=saves.writers, readers=saves.readers,
            gather_s=saves.gather, mode=saves.mode,
        )  # fmt: skip
    spec = TrainerSpec(
        function=TrainFunction(
            loop=TrainLoop(
                steps=loop.steps,
                step=ConstantStep(
                    step_s=loop.step, world_size=most if loop.fixed_batch else None
                ),
                step_cv=loop.step_cv,
                report_every=said.report_every,
                checkpoint_every=None if saves is None else saves.every_steps,
                checkpoint=checkpoint,
                dataset=None if loop.batches_per_s is None
                else ConstantRate(batches_per_s=loop.batches_per_s),
                set_up=SetUp(wait_s=loop.set_up, read_bytes=said.weights or 0.0),
                on_preemption=said.on_preemption,
            )
        ),
        scaling_config=_scaling(said),
        run_config=replace(_run_config(said), storage=storage),
    )  # fmt: skip
    return TrainRun(
        spec=spec,
        samples=None if samples is None else _Samples(samples, most, fixed=loop.fixed_batch),
        spot=bool(document.data.get("spot")),
        inputs=(
            Input(name="step", value=loop.step, basis="assumed", source="the scenario says so"),
        ),
    )


class _Samples:
    """Of one step, by the size of the group."""

    def __init__(self, samples: int, most: int, *, fixed: bool) -> None:
        self._samples, self._most, self._fixed = samples, most, fixed

    def __call__(self, world_size: int) -> float:
        return self._samples * (1.0 if self._fixed else world_size / self._most)


def _scaling(said: TrainerSection) -> ScalingConfig:
    return ScalingConfig(
        num_workers=said.num_workers,
        use_gpu=said.use_gpu,
        resources_per_worker=said.resources_per_worker,
        placement_strategy=said.placement_strategy,
        elastic_resize_monitor_interval_s=said.elastic_resize_monitor_interval,
    )


def _run_config(said: TrainerSection) -> RunConfig:
    failure = said.failure_config
    return RunConfig(
        failure_config=FailureConfig(
            max_failures=failure.max_failures,
            controller_failure_limit=failure.controller_failure_limit,
            max_preemption_failures=failure.max_preemption_failures,
            preemption_grace_s=failure.preemption_grace,
        ),
        checkpoint_config=CheckpointConfig(num_to_keep=said.num_to_keep),
    )


def note_files(at: KeyPath, folder: Path, document: Document, inputs: dict[KeyPath, Path]) -> None:
    """Files that the model and the training job of a section point to."""
    for path in _FILES:
        name = value_at(document.data, (*at, *path))
        if isinstance(name, str):
            inputs[*at, *path] = folder / name


class TrainingOf:
    """Training jobs of a trainer by the size of its group, read when they are asked for."""

    def __init__(self, folder: Path, document: Document, at: KeyPath) -> None:
        self._folder = folder
        self._document = document
        self._at = at

    def __call__(self, num_workers: int) -> tuple[TrainJob, ClusterSpec]:
        """The job and its cluster; raises ScenarioError, placed where this scenario says it."""
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
            cpus = (written.get("resources_per_worker") or {}).get("CPU", 0.0)
            return build_job(scenario, worker_cpus=cpus), scenario.cluster
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
