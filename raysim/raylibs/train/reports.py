"""What a worker hands to its controller: reports, and how it is.

Real counterparts: ``_TrainingReport`` of ``execution/training_report.py`` and ``WorkerStatus`` of
``execution/worker_group/poll.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysim.raycore.tasks import TaskError
from raysim.raylibs.train.gang import PreemptionInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A folder in the run's storage, complete."""

    name: str
    step: int
    """Steps done when it was taken."""
    reported_ns: int
    size_bytes: float
    data: Any = None
    """What a user's program finds in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """One ``report()``: of one rank, or of all where one script plays them."""

    metrics: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    of_all: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """The answer to a poll that finds something."""

    running: bool
    ready_ns: int
    """When a poll would first have found it."""
    report: TrainingReport | None = None
    error: TaskError | None = None
    return_value: Any = None
    preemption: PreemptionInfo | None = None
