"""The module ``ray.train`` (2.60) on virtual time."""

from __future__ import annotations

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.train import collective
from raysim.rayapi.train.callbacks import UserCallback
from raysim.rayapi.train.collective import get_preemption_info
from raysim.rayapi.train.configs import (
    BackendConfig,
    CheckpointConfig,
    CheckpointUploadMode,
    DataConfig,
    FailureConfig,
    LoggingConfig,
    RunConfig,
    ScalingConfig,
)
from raysim.rayapi.train.errors import (
    ControllerError,
    NCCLHangError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupError,
)
from raysim.rayapi.train.reported import (
    CheckpointConsistencyMode,
    ReportedCheckpoint,
    ReportedCheckpointStatus,
    get_all_reported_checkpoints,
)
from raysim.rayapi.train.trainer import DataParallelTrainer, Result
from raysim.rayapi.train.worker import (
    TrainContext,
    get_checkpoint,
    get_context,
    get_dataset_shard,
    report,
)
from raysim.rayapi.tune.configs import SyncConfig
from raysim.rayapi.unsupported import getattr_of
from raysim.raylibs.train.gang import PreemptionInfo

TRAIN_DATASET_KEY = "train"

__getattr__ = getattr_of("ray.train")

__all__ = [
    "TRAIN_DATASET_KEY",
    "BackendConfig",
    "Checkpoint",
    "CheckpointConfig",
    "CheckpointConsistencyMode",
    "CheckpointUploadMode",
    "ControllerError",
    "DataConfig",
    "DataParallelTrainer",
    "FailureConfig",
    "LoggingConfig",
    "NCCLHangError",
    "PreemptionError",
    "PreemptionInfo",
    "ReportedCheckpoint",
    "ReportedCheckpointStatus",
    "Result",
    "RunConfig",
    "ScalingConfig",
    "SyncConfig",
    "TrainContext",
    "TrainingFailedError",
    "UserCallback",
    "WorkerGroupError",
    "collective",
    "get_all_reported_checkpoints",
    "get_checkpoint",
    "get_context",
    "get_dataset_shard",
    "get_preemption_info",
    "report",
]
