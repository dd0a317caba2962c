"""``ray.train``'s configurations as programs write them, and what they come to in ``raylibs``.

Real counterparts (ray 2.60): ``ray/train/v2/api/config.py``, ``ray/air/config.py``. A
``storage_path`` with a scheme (``s3://``) is a folder of this run; its bytes are paid for at the
speed of the workers' own disks, as those of any other.
"""

from __future__ import annotations

import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from raysim.rayapi.data.context import DataContext, ExecutionOptions
from raysim.rayapi.train.callbacks import RayTrainCallback
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.train import config

_UNSAID = "DEPRECATED"
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")


class CheckpointUploadMode(Enum):
    """``ray.train.CheckpointUploadMode``."""

    ASYNC = "ASYNC"
    SYNC = "SYNC"
    NO_UPLOAD = "NO_UPLOAD"

    def default_delete_local_checkpoint_after_upload(self) -> bool:
        """Of a report that does not say."""
        return self is CheckpointUploadMode.ASYNC


class OfWorkers(ABC):
    """What scaling configurations say of a worker, ``ray.train``'s and ``ray.air``'s."""

    use_gpu: bool

    @property
    @abstractmethod
    def _each(self) -> dict[str, float]:
        """Resources of a worker."""

    @property
    def num_cpus_per_worker(self) -> float:
        """That a worker holds."""
        return self._each.get("CPU", 0)

    @property
    def num_gpus_per_worker(self) -> float:
        """That a worker holds."""
        return self._each.get("GPU", 0)

    def check_gpus(self) -> None:
        """As Ray checks."""
        if not self.use_gpu and self.num_gpus_per_worker:
            raise ValueError(
                "`use_gpu` is False but `GPU` was found in `resources_per_worker`. Either set "
                "`use_gpu` to True or remove `GPU` from `resources_per_worker."
            )


@dataclass
class ScalingConfig(OfWorkers):
    """``ray.train.ScalingConfig``."""

    trainer_resources: dict[str, float] | None = None
    num_workers: int | tuple[int, int] = 1
    use_gpu: bool = False
    resources_per_worker: dict[str, float] | None = None
    placement_strategy: str = "PACK"
    accelerator_type: str | None = None
    label_selector: Any = None
    use_tpu: bool = False
    topology: str | None = None
    elastic_resize_monitor_interval_s: float = 60.0

    def __post_init__(self) -> None:
        """As Ray checks."""
        if self.trainer_resources is not None:
            raise DeprecationWarning("`trainer_resources` is deprecated in Ray Train V2.")
        said = self.num_workers
        pair = isinstance(said, tuple) and len(said) == 2 and all(isinstance(n, int) for n in said)
        if not (isinstance(said, int) or pair):
            raise ValueError("ScalingConfig(num_workers) must be an int or a tuple of two ints.")
        if self.min_workers < 0:
            raise ValueError(
                f"Invalid ScalingConfig(num_workers={said}): Number of workers cannot be negative."
            )
        if self.min_workers > self.max_workers:
            raise ValueError(
                f"Invalid ScalingConfig(num_workers={said}): "
                f"min_workers={self.min_workers} must be <= max_workers={self.max_workers}."
            )
        self.check_gpus()

    @property
    def min_workers(self) -> int:
        """Fewest."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[0]

    @property
    def max_workers(self) -> int:
        """Most."""
        return self.num_workers if isinstance(self.num_workers, int) else self.num_workers[1]

    @property
    def _each(self) -> dict[str, float]:
        """Of a worker."""
        if self.resources_per_worker is None:
            return {"GPU": 1} if self.use_gpu else {"CPU": 1}
        return self.resources_per_worker | (
            {"GPU": self.resources_per_worker.get("GPU") or 1} if self.use_gpu else {}
        )

    @property
    def total_resources(self) -> dict[str, float]:
        """Of as many workers as there may be."""
        return {name: float(amount * self.max_workers) for name, amount in self._each.items()}

    @property
    def elasticity_enabled(self) -> bool:
        """Whether the group may have other sizes."""
        return isinstance(self.num_workers, tuple)


@dataclass
class CheckpointConfig:
    """``ray.train.CheckpointConfig``."""

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"
    checkpoint_frequency: Any = _UNSAID
    checkpoint_at_end: Any = _UNSAID

    def __post_init__(self) -> None:
        """As Ray checks."""
        for name in ("checkpoint_frequency", "checkpoint_at_end"):
            if getattr(self, name) != _UNSAID:
                raise DeprecationWarning(
                    f"`{name}` is deprecated since it does not apply to user-defined training "
                    "functions. Please remove this argument from your CheckpointConfig."
                )
        if self.num_to_keep is not None and self.num_to_keep <= 0:
            raise ValueError(
                f"Received invalid num_to_keep: {self.num_to_keep}. "
                "Must be None or an integer >= 1."
            )
        if self.checkpoint_score_order not in {"max", "min"}:
            raise ValueError(
                f"Received invalid checkpoint_score_order: {self.checkpoint_score_order}. "
                "Must be 'max' or 'min'."
            )


@dataclass
class FailureConfig:
    """``ray.train.FailureConfig``."""

    max_failures: int = 0
    fail_fast: Any = _UNSAID
    controller_failure_limit: int = -1
    max_preemption_failures: int = -1
    relax_collectives_on_preemption: bool = False
    preemption_grace_s: float = 0.0

    def __post_init__(self) -> None:
        """As Ray checks."""
        if self.fail_fast != _UNSAID:
            raise DeprecationWarning("`fail_fast` is deprecated in Ray Train V2.")


@dataclass
class LoggingConfig:
    """``ray.train.LoggingConfig``: accepted, of no effect."""

    log_level: str = "INFO"


@dataclass
class RunConfig:
    """``ray.train.RunConfig``."""

    name: str | None = None
    storage_path: Any = None
    storage_filesystem: Any = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None
    callbacks: list[Any] | None = None
    worker_runtime_env: Any = None
    logging_config: LoggingConfig | None = None
    sync_config: Any = _UNSAID
    verbose: Any = _UNSAID
    stop: Any = _UNSAID
    progress_reporter: Any = _UNSAID
    log_to_file: Any = _UNSAID

    def __post_init__(self) -> None:
        """As Ray checks."""
        self.failure_config = self.failure_config or FailureConfig()
        self.checkpoint_config = self.checkpoint_config or CheckpointConfig()
        self.logging_config = self.logging_config or LoggingConfig()
        self.callbacks = self.callbacks or []
        if not all(isinstance(callback, RayTrainCallback) for callback in self.callbacks):
            raise ValueError(
                "All callbacks must be instances of `ray.train.UserCallback`. Passing in a Ray "
                "Tune callback is no longer supported."
            )
        for name in ("sync_config", "verbose", "stop", "progress_reporter", "log_to_file"):
            if getattr(self, name) != _UNSAID:
                raise DeprecationWarning(
                    f"`RunConfig({name})` is deprecated. This configuration was a Ray Tune API "
                    "that did not support Ray Train usage well, so we are dropping support going "
                    "forward. If you heavily rely on these configurations, you can run Ray Train "
                    "as a single Ray Tune trial."
                )
        if not self.name:
            from datetime import datetime

            self.name = f"ray_train_run-{datetime.today():%Y-%m-%d_%H-%M-%S}"

    def folder(self) -> Path:
        """Where its results are."""
        where = os.fspath(self.storage_path) if self.storage_path is not None else ""
        if not where or "://" in where:
            where = tempfile.mkdtemp("ray_results")
        return Path(where).expanduser() / str(self.name)


@dataclass
class DataConfig:
    """``ray.train.DataConfig``; a subclass's own ``configure`` is not called."""

    datasets_to_split: Any = "all"
    execution_options: Any = None
    enable_shard_locality: bool = True

    def __post_init__(self) -> None:
        """As Ray checks."""
        said = self.datasets_to_split
        if not isinstance(said, list) and said != "all":
            raise TypeError(
                "`datasets_to_split` should be a 'all' or a list of strings of dataset names. "
                f"Received {type(said).__name__} with value {said}."
            )
        if type(self) is not DataConfig and "configure" in vars(type(self)):
            raise NotEmulatedError("DataConfig.configure", "DataConfig(datasets_to_split=)")

    @staticmethod
    def default_ingest_options() -> ExecutionOptions:
        """What the run's context says, for shards of datasets."""
        return replace(DataContext.get_current().execution_options)

    def splits(self, name: str) -> bool:
        """Whether a dataset is shared out."""
        return self.datasets_to_split == "all" or name in self.datasets_to_split


@dataclass
class BackendConfig:
    """``ray.train.backend.BackendConfig``."""


def scaling_of(said: ScalingConfig) -> config.ScalingConfig:
    """What the library plays."""
    if said.use_tpu or said.topology:
        raise NotEmulatedError("ScalingConfig(use_tpu=)", "use_gpu=True")
    if said.label_selector:
        raise NotEmulatedError("ScalingConfig(label_selector=)", "resources_per_worker=")
    if said.min_workers == 0:
        raise NotEmulatedError("ScalingConfig(num_workers=0), local mode,", "num_workers=1")
    resources: Mapping[str, float] | None = said.resources_per_worker
    if said.accelerator_type:
        own = {"GPU": 1.0} if said.use_gpu else {"CPU": 1.0}
        resources = {**(resources or own), f"accelerator_type:{said.accelerator_type}": 0.001}
    strategy: Any = said.placement_strategy
    if strategy not in _STRATEGIES:
        raise ValueError(f"Invalid placement strategy {strategy}: one of {_STRATEGIES}")
    return config.ScalingConfig(
        num_workers=said.num_workers, use_gpu=said.use_gpu, resources_per_worker=resources,
        placement_strategy=strategy,
        elastic_resize_monitor_interval_s=said.elastic_resize_monitor_interval_s,
    )  # fmt: skip


def run_of(said: RunConfig) -> config.RunConfig:
    """What the library plays."""
    if said.storage_filesystem:
        raise NotEmulatedError("RunConfig(storage_filesystem=)", "storage_path=")
    failure, saving = said.failure_config, said.checkpoint_config
    assert failure is not None, "set in __post_init__"
    assert saving is not None, "set in __post_init__"
    order: Any = saving.checkpoint_score_order
    return config.RunConfig(
        name=str(said.name),
        failure_config=config.FailureConfig(
            max_failures=failure.max_failures,
            controller_failure_limit=failure.controller_failure_limit,
            max_preemption_failures=failure.max_preemption_failures,
            preemption_grace_s=failure.preemption_grace_s,
        ),
        checkpoint_config=config.CheckpointConfig(
            num_to_keep=saving.num_to_keep,
            checkpoint_score_attribute=saving.checkpoint_score_attribute,
            checkpoint_score_order=order,
        ),
    )
