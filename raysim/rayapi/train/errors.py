"""Errors of ``ray.train``.

Real counterpart (ray 2.60): ``ray/train/v2/api/exceptions.py``, ``v2/_internal/exceptions.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from raysim.rayapi.task_errors import RayError, RayTaskError

ERR_CHAR_LIMIT = 1000
"""``v2/_internal/execution/worker_group/poll.py``: longer errors are cut in the middle."""


class RayTrainError(Exception):
    """The root."""


class TrainingFailedError(RayTrainError):
    """``ray.train.TrainingFailedError``: what ``fit()`` raises."""


class WorkerGroupError(TrainingFailedError):
    """Workers failed; ``worker_failures`` says which, and of what."""

    def __init__(self, error_message: str, worker_failures: dict[int, Exception]) -> None:
        super().__init__("Training failed due to worker errors:\n" + error_message)
        self._error_message = error_message
        self.worker_failures = worker_failures

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._error_message, self.worker_failures)


class NCCLHangError(WorkerGroupError):
    """Of a detector that is off by default."""


class ControllerError(TrainingFailedError):
    """The controller could not go on."""

    def __init__(self, controller_failure: Exception) -> None:
        super().__init__("Training failed due to controller error:\n" + str(controller_failure))
        self.controller_failure = controller_failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.controller_failure,)


class PreemptionError(TrainingFailedError):
    """A node was taken back, once more than ``max_preemption_failures``."""


class WorkerGroupStartupTimeoutError(RayTrainError):
    """No placement group in time."""


class WorkerHealthCheckFailedError(RayTrainError):
    """A worker's process is gone."""

    def __init__(self, message: str, health_check_failure: Exception) -> None:
        super().__init__(message)
        self._message = message
        self.health_check_failure = health_check_failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._message, self.health_check_failure)

    def __str__(self) -> str:
        """As Ray says it."""
        return f"{self._message}\n{self.health_check_failure}"


def of_workers(failures: Mapping[int, BaseException]) -> WorkerGroupError:
    """One error of all workers that failed; like errors of several ranks are said once."""
    found: dict[int, tuple[Exception, str]] = {
        rank: _of_worker(error) for rank, error in failures.items()
    }
    alike: dict[str, list[int]] = {}
    for rank, (_, text) in found.items():
        alike.setdefault(re.sub(r"\d+", "<NUM>", text), []).append(rank)
    said = []
    for ranks in alike.values():
        error, text = found[ranks[0]]
        if len(text) >= ERR_CHAR_LIMIT and not isinstance(error, WorkerHealthCheckFailedError):
            half = ERR_CHAR_LIMIT // 2
            cut = "...\n... (Output truncated. See individual worker logs for full details) ...\n"
            text = text[:half] + cut + text[-half:]
        said.append(f"[Rank {','.join(map(str, ranks))} Error Snippet]:\n{text}")
    return WorkerGroupError("\n".join(said), {rank: e for rank, (e, _) in found.items()})


def _of_worker(error: BaseException) -> tuple[Exception, str]:
    """What has failed, and how it is said: a loop's own exception by its traceback."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        plain = cause if isinstance(cause, Exception) else RuntimeError(str(cause))
        return plain, error.traceback_str
    assert isinstance(error, RayError), f"a worker failed with {error!r}"
    died = WorkerHealthCheckFailedError("A worker health check failed.", error)
    return died, str(died)
