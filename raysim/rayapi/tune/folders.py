"""Where an experiment is kept: its folder, directories and result files of its trials, its state.

Real counterparts (ray 2.60): ``ray/train/_internal/storage.py``, ``tune/logger/{json,csv}.py``,
``tune/execution/experiment_state.py``. Without a ``storage_path`` experiments are in a temporary
folder of the run, which stands for ``~/ray_results``; so do storages elsewhere (``s3://``). A trial
that begins anew in a directory that is there replaces its result files.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from numbers import Integral, Number
from pathlib import Path
from typing import Any

from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.library_code import session_here
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.session import Session
from raysim.raylibs.tune.progress import flattened
from raysim.raylibs.tune.search.algorithms import SearchAlgorithm
from raysim.raylibs.tune.trial import Trial

RESULT_FILE, PROGRESS_FILE = "result.json", "progress.csv"
PARAMS_FILE, PICKLED_PARAMS_FILE = "params.json", "params.pkl"
TUNER_FILE, STATE_FILE = "tuner.pkl", "experiment_state.pkl"

AUTO_KEYS = frozenset({
    "training_iteration", "time_total_s", "episodes_total", "timesteps_total", "node_ip",
    "hostname", "pid", "time_this_iter_s", "timestamp", "date", "time_since_restore",
    "timesteps_since_restore", "iterations_since_restore", "config", "checkpoint_dir_name", "done",
    "trial_id", "experiment_tag", "should_checkpoint",
})  # fmt: skip
"""Of results: what Ray fills in, and leaves out where it shows them."""

MAX_NAME = 130
"""``TUNE_MAX_LEN_IDENTIFIER``'s default."""


def results_root() -> Path:
    """What stands for ``~/ray_results`` in this run."""
    libraries = session_here().libraries
    if "ray_results" not in libraries:
        libraries["ray_results"] = tempfile.mkdtemp("ray_results")
    return Path(libraries["ray_results"])


def experiment_folder(storage_path: Any, name: str) -> Path:
    """Of the experiment of this name."""
    where = os.fspath(storage_path) if storage_path is not None else ""
    if not where or "://" in where:
        return results_root() / name
    return stored(where) / name


def stored(path: Any) -> Path:
    """A path as the program says it; of ``~/ray_results``, the run's own comes first."""
    said = Path(path).expanduser().absolute()
    home = Path("~/ray_results").expanduser()
    if not said.is_relative_to(home):
        return said
    ours = results_root() / said.relative_to(home)
    return ours if ours.exists() or not said.exists() else said


def new_name(trainable: str) -> str:
    """Of an experiment that has been given none."""
    dated = f"{trainable}_{date(session_here().now_ns)}"
    names = (dated, *(f"{dated}_{k}" for k in range(1, MAX_NAME)))
    return next((name for name in names if not (results_root() / name).exists()), dated)


def date(now_ns: int) -> str:
    """As Ray has it in names and results."""
    since = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=EPOCH_S + now_ns // 10**9)
    return since.strftime("%Y-%m-%d_%H-%M-%S")


def flat(result: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of inner dictionaries joined by ``/``."""
    return dict(flattened(result))


def logged(result: Mapping[str, Any]) -> dict[str, Any]:
    """As Ray's files have it: its trial's tag is added when they are written."""
    return {key: value for key, value in result.items() if key != "experiment_tag"}


def plain(value: Any) -> Any:
    """Of what JSON does not know: Ray's ``SafeFallbackEncoder``."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Number):
        return float(value)  # type: ignore[arg-type]
    return str(value)


class TrialFolders:
    """Directories of an experiment's trials.

    Parameters
    ----------
    folder
        The experiment's.
    name_of, dirname_of
        ``trial_name_creator`` and ``trial_dirname_creator``.
    session
        Whose clock dates them; its driver's library asks, not a fiber of the program.
    """

    def __init__(self, folder: Path, name_of: Any, dirname_of: Any, session: Session) -> None:
        self._folder, self._session = folder, session
        self._name_of, self._dirname_of = name_of, dirname_of
        self._columns: dict[str, list[str]] = {}

    def give(self, trial: Trial) -> None:
        """One to a new trial, with its parameters; a restored one keeps its own."""
        if trial.path is not None:
            return
        if self._name_of is not None:
            trial.custom_trial_name = self._name_of(trial)
        if self._dirname_of is not None:
            trial.custom_dirname = str(self._dirname_of(trial))
        tagged = f"{trial}_{trial.experiment_tag}"[:MAX_NAME]
        name = trial.custom_dirname or f"{tagged}_{date(self._session.now_ns)}"
        path = self._folder / re.sub(r'[/()<>:"\\|?*]', "_", name)
        path.mkdir(parents=True, exist_ok=True)
        for file in (RESULT_FILE, PROGRESS_FILE):
            (path / file).unlink(missing_ok=True)
        text = json.dumps(trial.config, indent=2, sort_keys=True, default=plain)
        (path / PARAMS_FILE).write_text(text)
        (path / PICKLED_PARAMS_FILE).write_bytes(dump_code(trial.config))
        trial.path = str(path)

    def log(self, trial: Trial, result: Mapping[str, Any]) -> None:
        """A result, in both files."""
        assert trial.path is not None, f"{trial} reports without a directory"
        said = logged(result)
        with Path(trial.path, RESULT_FILE).open("a") as file:
            file.write(json.dumps(said, default=plain) + "\n")
        row = flat({key: value for key, value in said.items() if key != "config"})
        with Path(trial.path, PROGRESS_FILE).open("a", newline="") as file:
            columns = self._columns.get(trial.trial_id)
            begins = not file.tell()
            if columns is None:
                columns = self._columns[trial.trial_id] = list(row)
            writer = csv.DictWriter(file, columns, extrasaction="ignore")
            if begins:
                writer.writeheader()
            writer.writerow(row)


def read_results(folder: Path) -> list[dict[str, Any]]:
    """All results of a trial, out of its directory."""
    if not folder.exists():
        raise RuntimeError(f"Trial folder {folder} doesn't exist!")
    file = folder / RESULT_FILE
    if not file.exists():
        raise RuntimeError(
            f"Failed to restore the Result object: Neither {RESULT_FILE} nor {PROGRESS_FILE} "
            "exists in the trial folder!"
        )
    return [json.loads(line) for line in file.read_text().splitlines() if line]


@dataclass
class State:
    """Of an experiment, as its driver left it."""

    trials: list[Trial]
    search: SearchAlgorithm
    callbacks: list[Any] = field(default_factory=list)
    folder: str = ""

    def write(self) -> None:
        """In the experiment's folder; all of it or nothing."""
        file = Path(self.folder, STATE_FILE)
        new = file.with_suffix(".new")
        new.write_bytes(dump_code(self))
        new.replace(file)


def read_state(folder: Path) -> State | None:
    """What was written last, with its paths where the folder is now; None: nothing."""
    file = folder / STATE_FILE
    if not file.exists():
        return None
    state: State = load_code(file.read_bytes())
    for trial in state.trials:
        if trial.path is not None:
            trial.path = _moved(trial.path, state.folder, folder)
        trial.checkpoint = _at(trial.checkpoint, state.folder, folder)
        trial.checkpoints = [_at(c, state.folder, folder) for c in trial.checkpoints]
    state.folder = str(folder)
    return state


def _at(checkpoint: Any, old: str, new: Path) -> Any:
    if checkpoint is None or checkpoint.state is None:
        return checkpoint
    return replace(checkpoint, state=Checkpoint(_moved(checkpoint.state.path, old, new)))


def _moved(path: str, old: str, new: Path) -> str:
    return str(new / Path(path).relative_to(old)) if Path(path).is_relative_to(old) else path


def requeued(trials: Sequence[Trial], how: Any) -> tuple[Trial, ...]:
    """Trials of a restored experiment as it goes on with them (``_requeue_restored_trials``)."""
    out = []
    for trial in sorted(trials, key=lambda t: -t.last_result_ns):
        trial.runs, trial.started_ns, trial.ended_ns = [], None, None
        trial.is_saving = False
        what = {"ERROR": how.errored, "TERMINATED": how.finished}.get(trial.status, how.unfinished)
        match str(what):
            case "resume":
                trial.status, trial.error = "PENDING", None
                out.append(trial)
            case "restart":
                out.append(_anew(trial))
            case _:
                trial.status = "ERROR" if trial.status == "ERROR" else "TERMINATED"
                out.append(trial)
    return tuple(out)


def _anew(trial: Trial) -> Trial:
    return Trial(
        trial.trial_id, trial.config, resources=trial.resources,
        experiment_tag=trial.experiment_tag, evaluated_params=trial.evaluated_params,
        trainable_name=trial.trainable_name,
    )  # fmt: skip
