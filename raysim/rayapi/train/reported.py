"""``ray.train.get_all_reported_checkpoints``: what the controller has kept of a run so far.

Real counterpart: ``ray/train/v2/api/{reported_checkpoint,report_config,train_fn_utils}.py`` of ray
2.60. Nothing is validated, so what is there is committed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

from raysim.rayapi.calls import program_call
from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.library_code import play
from raysim.rayapi.train.worker import here


class CheckpointConsistencyMode(Enum):
    """What is waited for: the upload of the latest report, or its validation too."""

    COMMITTED = "COMMITTED"
    VALIDATED = "VALIDATED"


class ReportedCheckpointStatus(Enum):
    """How far one is."""

    COMMITTED = "COMMITTED"
    PENDING_VALIDATION = "PENDING_VALIDATION"
    VALIDATED = "VALIDATED"
    VALIDATION_TIMEOUT = "VALIDATION_TIMEOUT"
    VALIDATION_FAILED = "VALIDATION_FAILED"


@dataclass
class ReportedCheckpoint:
    """One that is kept, and what was reported with it."""

    checkpoint: Checkpoint
    metrics: dict[str, Any]
    status: ReportedCheckpointStatus


@program_call
def get_all_reported_checkpoints(
    consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
    timeout_s: float | None = None,
) -> list[ReportedCheckpoint]:
    """Checkpoints that are kept, once the controller has this worker's latest report.

    Raises
    ------
    RuntimeError
        Outside of a training function.
    ValueError
        There is no such mode.
    """
    worker = here("get_all_reported_checkpoints")
    if consistency_mode not in CheckpointConsistencyMode:
        raise ValueError(f"Unexpected CheckpointConsistencyMode: {consistency_mode}")
    worker.phase("reports")
    found = play(lambda _: worker.context.all_reported(timeout_s))
    worker.phase("steps" if worker.torch_steps is None else "between")
    committed = ReportedCheckpointStatus.COMMITTED
    return [
        ReportedCheckpoint(kept.data, copy.deepcopy(dict(metrics)), committed)
        for kept, metrics in found
    ]
