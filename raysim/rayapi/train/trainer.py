"""``DataParallelTrainer.fit()`` and its ``Result``: ``raylibs.train`` over the user's loop.

Real counterparts (ray 2.60): ``ray/train/v2/api/{data_parallel_trainer,result}.py``. A run that
fails raises ``WorkerGroupError`` or ``ControllerError``, as Ray's does.

Not modelled: local mode.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysim.rayapi.calls import program_call, this_core, this_fiber
from raysim.rayapi.checkpoint import Checkpoint, best_checkpoint, local_filesystem
from raysim.rayapi.clock import import_pandas
from raysim.rayapi.data.executions import for_ranks
from raysim.rayapi.failures import exception_of
from raysim.rayapi.library_code import play
from raysim.rayapi.serialization import dump_code
from raysim.rayapi.session import Session
from raysim.rayapi.train.callbacks import Callbacks, TrainRunContext
from raysim.rayapi.train.configs import (
    BackendConfig,
    CheckpointConfig,
    DataConfig,
    RunConfig,
    ScalingConfig,
    run_of,
    scaling_of,
)
from raysim.rayapi.train.errors import (
    ControllerError,
    PreemptionError,
    TrainingFailedError,
    WorkerGroupStartupTimeoutError,
    of_workers,
)
from raysim.rayapi.train.worker import Run, Worker
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raycore.tasks import TaskError
from raysim.raylibs.nodes import cluster_nodes
from raysim.raylibs.report import LibraryReport
from raysim.raylibs.train import reports
from raysim.raylibs.train.advice import never_fits
from raysim.raylibs.train.controller import TrainOutcome
from raysim.raylibs.train.datasets import TrainDataset
from raysim.raylibs.train.fit import fit
from raysim.raylibs.train.job import TrainRun
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker import TrainFunction

if TYPE_CHECKING:
    import pandas as pd

_ISSUE = "See this issue for more context: https://github.com/ray-project/ray/issues/49454"


_SNAPSHOT = "checkpoint_manager_snapshot.json"
"""Ray's name of what ``Result.from_path`` reads."""


@dataclass(repr=False)
class Result:
    """``ray.train.Result``."""

    metrics: dict[str, Any] | None
    """Of the latest checkpoint, as Ray Train V2 has it; None without one."""
    checkpoint: Checkpoint | None
    error: Exception | None
    path: str
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]] | None = None
    return_value: Any = None

    @classmethod
    def from_path(cls, path: Any, storage_filesystem: Any = None) -> Result:
        """Of a run that has ended, by its folder; its error is not known any more.

        Raises
        ------
        RuntimeError
            There is no such folder, or no run has left its list of checkpoints there.
        """
        del storage_filesystem
        folder = Path(path)
        if not folder.exists():
            raise RuntimeError(f"Experiment folder {folder} doesn't exist.")
        if not (folder / _SNAPSHOT).exists():
            raise RuntimeError(
                f"Failed to restore the Result object: {_SNAPSHOT} doesn't exist in the experiment "
                "folder. Make sure that this is an output directory created by a Ray Train run."
            )
        said = json.loads((folder / _SNAPSHOT).read_text(encoding="utf-8"))

        def known(entry: dict[str, Any]) -> tuple[Checkpoint, dict[str, Any]]:
            where = folder / entry["checkpoint_dir_name"]
            return Checkpoint.from_directory(where), entry["metrics"]

        best = [known(entry) for entry in said["checkpoint_results"]]
        latest = said["latest_checkpoint_result"]
        checkpoint, metrics = known(latest) if latest else (None, None)
        return cls(metrics, checkpoint, None, str(folder), best)

    def _keep(self, best: list[tuple[Checkpoint, dict[str, Any]]]) -> None:
        """Leave the list of checkpoints, as Ray's ``CheckpointManager`` does."""

        def entry(checkpoint: Checkpoint, metrics: dict[str, Any]) -> dict[str, Any]:
            name = Path(checkpoint.path).name
            return {"version": 0, "checkpoint_dir_name": name, "metrics": metrics}

        said = {
            "checkpoint_results": [entry(*each) for each in best],
            "latest_checkpoint_result": (
                entry(self.checkpoint, self.metrics or {}) if self.checkpoint else None
            ),
        }
        text = json.dumps(said, default=str)
        (Path(self.path) / _SNAPSHOT).write_text(text, encoding="utf-8")

    def __repr__(self) -> str:
        return (
            f"Result(metrics={self.metrics}, checkpoint={self.checkpoint}, error={self.error}, "
            f"path={self.path!r}, metrics_dataframe={self.metrics_dataframe}, "
            f"best_checkpoints={self.best_checkpoints}, _storage_filesystem={self.filesystem}, "
            f"return_value={self.return_value})"
        )

    @property
    def filesystem(self) -> Any:
        """``pyarrow``'s, of ``path``."""
        return local_filesystem()

    @property
    def config(self) -> Any:
        """Of Tune's results alone."""
        raise DeprecationWarning(
            "The `config` property for a `ray.train.Result` is deprecated, since it is only "
            "relevant in the context of Ray Tune."
        )

    @property
    def metrics_dataframe(self) -> pd.DataFrame | None:
        """Metrics of all checkpoints that are kept."""
        if not self.best_checkpoints:
            return None
        frame: pd.DataFrame = import_pandas().DataFrame([m for _, m in self.best_checkpoints])
        return frame

    def get_best_checkpoint(self, metric: str, mode: str) -> Checkpoint | None:
        """Of those kept."""
        known = (self.metrics or {}).keys()
        return best_checkpoint(self.best_checkpoints or [], metric, mode, known)


class DataParallelTrainer:
    """``ray.train.data_parallel_trainer.DataParallelTrainer``."""

    def __init__(
        self,
        train_loop_per_worker: Callable[..., Any],
        *,
        train_loop_config: dict[str, Any] | None = None,
        backend_config: BackendConfig | None = None,
        scaling_config: ScalingConfig | None = None,
        run_config: RunConfig | None = None,
        datasets: Mapping[str, Any] | None = None,
        dataset_config: Any = None,
        resume_from_checkpoint: Checkpoint | None = None,
        metadata: dict[str, Any] | None = None,
        validation_config: Any = None,
    ) -> None:
        self.train_loop_per_worker = train_loop_per_worker
        self.train_loop_config = train_loop_config
        self.backend_config = backend_config or BackendConfig()
        self.scaling_config = scaling_config or ScalingConfig()
        self.run_config = run_config or RunConfig()
        self.dataset_config = dataset_config
        if resume_from_checkpoint is not None:
            raise DeprecationWarning(
                "`resume_from_checkpoint` is deprecated: pass the checkpoint in "
                "`train_loop_config` and load it in the training function."
            )
        if metadata is not None:
            raise DeprecationWarning("`metadata` is deprecated: use `train_loop_config`.")
        self.datasets = dict(datasets or {})
        if validation_config is not None:
            raise NotEmulatedError("validation_config= of a trainer", "validating in the loop")
        if not isinstance(self.run_config, RunConfig):
            raise ValueError(
                f"Invalid `RunConfig` type: {type(self.run_config)}. "
                f"Use `ray.train.RunConfig` instead. {_ISSUE}"
            )
        if not isinstance(self.scaling_config, ScalingConfig):
            raise ValueError(
                f"Invalid `ScalingConfig` type: {type(self.scaling_config)}. "
                f"Use `ray.train.ScalingConfig` instead. {_ISSUE}"
            )

    def _set_up(self, worker: Worker) -> None:
        """What the backend does in a worker before the loop."""

    def _report(self, report: LibraryReport) -> LibraryReport:
        """What the backend adds to a run's report."""
        return report

    def _stopped(self, run: Run) -> None:
        """In its midst: what there has been."""
        text = f"{run.name} was under way."
        report = self._report(LibraryReport(kind="train", ok=True, text=text, metrics={}))
        run.session.env.reports.append(report)

    @program_call
    def fit(self) -> Result:
        """Run it to its end.

        Raises
        ------
        TrainingFailedError
            More failures than the run allows, or workers that can never be placed, for which Ray
            would ask for ever.
        """
        run = Run(
            session=this_fiber().process.session,
            code=dump_code(self.train_loop_per_worker),
            config=self._config(),
            name=getattr(self.train_loop_per_worker, "__name__", "train_loop_per_worker"),
            folder=self.run_config.folder(),
            env_vars=this_fiber().process.runtime_env.get("env_vars") or {},
            set_up=self._set_up,
            datasets={name: d() if callable(d) else d for name, d in self.datasets.items()},
        )
        core = this_core(this_fiber())
        scaling = scaling_of(self.scaling_config)
        run.gpus, run.cpus = (scaling.resources.get(name, 0.0) for name in ("GPU", "CPU"))
        left = _left_in(run.folder)
        spec = TrainerSpec(
            earlier=left,
            function=TrainFunction(user=run.loop),
            scaling_config=scaling,
            run_config=run_of(self.run_config),
            datasets=self._for_ranks(run.datasets),
            watched=self._callbacks(run.session),
        )
        nodes = cluster_nodes(core)
        never = never_fits(spec, nodes)
        if never is not None:
            unplaced = LibraryReport(
                kind="train", ok=False, text=never.cause, metrics={}, warnings=(never,)
            )
            run.session.env.reports.append(unplaced)
            raise ControllerError(WorkerGroupStartupTimeoutError(f"{never.cause} {never.fix}"))
        run.folder.mkdir(parents=True, exist_ok=True)
        run.session.unfinished[self] = partial(self._stopped, run)
        outcome = play(lambda _: fit(spec))
        del run.session.unfinished[self]
        if isinstance(outcome, TaskError):
            raise ControllerError(_plain(exception_of(outcome, "")))
        played = TrainRun(spec=spec, simplifications=())
        report = played.report(outcome, nodes)
        run.session.env.reports.append(self._report(report))
        if isinstance(spec.watched, Callbacks) and spec.watched.error is not None:
            raise ControllerError(_plain(exception_of(spec.watched.error, "")))
        refused = _refused(outcome)
        if refused is not None:
            raise refused
        keep = (self.run_config.checkpoint_config or CheckpointConfig()).num_to_keep or 0
        result = _result(outcome, str(run.folder), keep)
        result._keep([(c.data, dict(m)) for c, m in outcome.best])  # noqa: SLF001  (its own)
        _delete(run, outcome, left)
        error = _error_of(outcome)
        if error is not None:
            raise error
        return result

    def _callbacks(self, session: Session) -> Callbacks | None:
        if not self.run_config.callbacks:
            return None
        context = TrainRunContext(
            session.sim.rng("train/run_ids").bytes(16).hex(), self.run_config, self._config(),
            self.scaling_config, self.backend_config, self.dataset_config,
        )  # fmt: skip
        return Callbacks(session, self.run_config.callbacks, context)

    def _for_ranks(self, datasets: Mapping[str, Any]) -> dict[str, TrainDataset]:
        config = self.dataset_config or DataConfig()
        return {
            name: for_ranks(
                dataset, is_split=config.splits(name), locality=config.enable_shard_locality
            )
            for name, dataset in datasets.items()
        }

    def _config(self) -> dict[str, Any] | None:
        """What the loop is called with; None: nothing."""
        said = inspect.signature(self.train_loop_per_worker).parameters.values()
        required = [p for p in said if p.default is p.empty and p.kind not in (
            p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
        if len(required) > 1:
            raise ValueError(
                "train_loop_per_worker should take in 0 or 1 required arguments, but it accepts "
                f"{len(required)} required arguments instead."
            )
        return (self.train_loop_config or {}) if required else None

    @classmethod
    def restore(cls, *_args: Any, **_kwargs: Any) -> DataParallelTrainer:
        """Deprecated in Ray."""
        raise DeprecationWarning("`restore` is deprecated in Ray Train V2.")


Kept = tuple[tuple[reports.Checkpoint, Mapping[str, Any]], ...]


def _left_in(folder: Path) -> Kept:
    """Checkpoints of a run of this name that has ended, its latest last: it goes on from there."""
    if not (folder / _SNAPSHOT).exists():
        return ()
    found = Result.from_path(folder)
    entries = [(c, m) for c, m in found.best_checkpoints or [] if c != found.checkpoint]
    if found.checkpoint is not None:
        entries.append((found.checkpoint, found.metrics or {}))
    return tuple(
        (
            reports.Checkpoint(
                name=Path(each.path).name, step=0, reported_ns=0,
                size_bytes=float(each.size_bytes), data=each,
            ),
            metrics,
        )
        for each, metrics in entries
        if Path(each.path).exists()
    )  # fmt: skip


def _delete(run: Run, outcome: TrainOutcome, left: Kept) -> None:
    """Files of checkpoints that are kept no more."""
    kept = {c.name for c, _ in outcome.best} | {outcome.checkpoint and outcome.checkpoint.name}
    for name in {*run.checkpoint_names.values(), *(c.name for c, _ in left)} - kept:
        shutil.rmtree(run.folder / name, ignore_errors=True)


def _plain(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _refused(outcome: TrainOutcome) -> NotEmulatedError | None:
    """What a loop has used that is not emulated: no failure of the program's."""
    for error in outcome.failures.values():
        cause = getattr(exception_of(error, ""), "cause", None)
        if isinstance(cause, NotEmulatedError):
            return cause
    return None


def _error_of(outcome: TrainOutcome) -> TrainingFailedError | None:
    if outcome.ok:
        return None
    if outcome.cause == "preemption":
        return PreemptionError("Training was interrupted by node preemption.")
    if outcome.cause == "start" or not outcome.failures:
        said = outcome.error.message if outcome.error is not None else outcome.cause
        return ControllerError(WorkerGroupStartupTimeoutError(said))
    return of_workers({
        rank: exception_of(error, "") for rank, error in sorted(outcome.failures.items())
    })  # fmt: skip


def _result(outcome: TrainOutcome, path: str, keep: int) -> Result:
    checkpoint = outcome.checkpoint.data if outcome.checkpoint is not None else None
    best = [(c.data, dict(m)) for c, m in outcome.best[-keep:]]  # the latest may be kept besides
    metrics = dict(outcome.metrics) if outcome.metrics is not None else None
    return Result(metrics, checkpoint, None, path, best, outcome.return_value)
