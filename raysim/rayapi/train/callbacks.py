"""``ray.train.UserCallback``: what a program hears of a run, in its controller's process.

Real counterpart: ``ray/train/v2/api/callback.py`` and ``TrainRunContext`` of
``_internal/execution/context.py`` (ray 2.60). The controller has copies of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysim.rayapi.failures import exception_of
from raysim.rayapi.imports import load_program
from raysim.rayapi.library_code import in_fiber, state_of
from raysim.rayapi.serialization import dump_code
from raysim.rayapi.session import Session
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script
from raysim.raycore.tasks import TaskError
from raysim.raylibs.train.reports import TrainingReport


class RayTrainCallback:
    """Base of callbacks."""


class UserCallback(RayTrainCallback):
    """``ray.train.UserCallback``."""

    def after_report(
        self, run_context: TrainRunContext, metrics: list[dict[str, Any]], checkpoint: Any
    ) -> None:
        """Every worker has reported: metrics by rank, and the checkpoint or None."""

    def after_exception(
        self, run_context: TrainRunContext, worker_exceptions: dict[int, Exception]
    ) -> None:
        """Workers have raised: by rank."""


@dataclass(frozen=True)
class TrainRunContext:
    """Of a run, as its trainer was told."""

    run_id: str
    run_config: Any
    train_loop_config: dict[str, Any] | None
    scaling_config: Any
    backend_config: Any
    dataset_config: Any

    def get_run_config(self) -> Any:
        """Of the trainer."""
        return self.run_config


class Callbacks:
    """Of one run: ``raylibs.train.trainer.Watching``."""

    def __init__(
        self, session: Session, callbacks: Sequence[UserCallback], context: TrainRunContext
    ) -> None:
        self._session = session
        self._code = dump_code((list(callbacks), context))
        self._loaded: Any = None
        self.error: TaskError | None = None
        """The first that a callback has raised."""

    def reported(self, process: CoreProcess, reports: Sequence[TrainingReport]) -> Script:
        """``after_report``."""
        metrics = [dict(report.metrics) for report in reports]
        saved = next((r.checkpoint.data for r in reports if r.checkpoint is not None), None)
        yield from self._call(process, "after_report", metrics, saved)

    def failed(self, process: CoreProcess, failures: Mapping[int, TaskError]) -> Script:
        """``after_exception``."""
        errors = {rank: _cause(error) for rank, error in sorted(failures.items())}
        yield from self._call(process, "after_exception", errors)

    def _call(self, process: CoreProcess, name: str, *args: Any) -> Script:
        def main() -> None:
            if self._loaded is None:
                self._loaded = load_program(self._code)
            callbacks, context = self._loaded
            for each in callbacks:
                getattr(each, name)(context, *args)

        found = yield in_fiber(state_of(self._session, process), main, name)
        if isinstance(found, TaskError):
            self.error = self.error or found


def _cause(error: TaskError) -> Any:
    found = exception_of(error, "")
    return getattr(found, "cause", found)
