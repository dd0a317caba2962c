"""Users' trainables in trials: functions that report, classes that step.

Real counterparts (ray 2.60): ``ray/tune/trainable/{trainable,function_trainable,util}.py`` and
``trainable_fn_utils.py``. A function runs in a fiber of its trial's actor and stands still between
``report`` and the next ``train`` call, as Ray's synchronous reporting has it. Checkpoints are
copied for their content; virtual time pays for their bytes.

Not modelled: exports, ``log_to_file``, placement of tasks that a trial submits in its group.
"""

from __future__ import annotations

import copy
import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.checkpoint import Checkpoint
from raysim.rayapi.clock import EPOCH_S
from raysim.rayapi.fibers import Fiber
from raysim.rayapi.imports import load_program
from raysim.rayapi.library_code import fiber_of, hand_over, in_fiber, on_gpus, state_of
from raysim.rayapi.serialization import dump_code, load_code
from raysim.rayapi.session import Session
from raysim.rayapi.tune.by_hand import ByHand
from raysim.rayapi.tune.folders import date
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, sleep, wait_for
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.program import DONE, DUPLICATE, SHOULD_CHECKPOINT
from raysim.raylibs.tune.resources import PlacementGroupFactory, of_resources
from raysim.raylibs.tune.schedulers.decisions import DEFAULT_METRIC
from raysim.raylibs.tune.trial import Trial, TrialCheckpoint

WRITE_BYTES_PER_S = 500e6
"""Of a checkpoint to storage and back: a local SSD of a cloud machine (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What trials of one experiment share."""

    session: Session
    code: bytes
    is_class: bool
    name: str
    folder: Path


class Trainable(ByHand):
    """``tune.Trainable``."""

    _trial: ClassVar[Any] = None

    def __init__(self, config: dict[str, Any] | None = None, **_kwargs: Any) -> None:
        self.config: Any = config or {}
        self.setup(copy.deepcopy(self.config))

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory | None:
        """None: one CPU."""
        del config
        return None

    def setup(self, config: dict[str, Any]) -> None:
        """Users override."""

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Users override; False: an actor cannot be reused."""
        del new_config
        return False

    @property
    def iteration(self) -> int:
        """Steps taken."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """Steps taken."""
        return self._iteration

    @property
    def trial_id(self) -> str:
        """Of the trial it runs."""
        return str(getattr(self._trial, "trial_id", ""))

    @property
    def trial_name(self) -> str:
        """Of the trial it runs."""
        return str(self._trial or "")

    @property
    def logdir(self) -> str:
        """Of the trial it runs."""
        return str(getattr(self._trial, "path", ""))

    @property
    def trial_resources(self) -> PlacementGroupFactory | None:
        """Of the trial it runs."""
        return getattr(self._trial, "resources", None)

    def get_config(self) -> Any:
        """The configuration."""
        return self.config


class UserTrainable:
    """What a function and a class have in common: results filled in, checkpoints kept."""

    def __init__(self, process: CoreProcess, trial: Trial, where: Where) -> None:
        self.process = process
        self.trial = trial
        self.where = where
        self.state = state_of(where.session, process)
        self.config: dict[str, Any] = {}
        self.loaded: Checkpoint | None = None
        self._restored(0, 0.0)

    def _restored(self, iteration: int, time_total_s: float) -> None:
        self.iteration, self.time_total_s = iteration, time_total_s
        self.since_restore, self.since_restore_s = 0, 0.0

    def filled(self, metrics: Mapping[str, Any], began_ns: int) -> dict[str, Any]:
        """``Trainable.train``'s result."""
        took_s = metrics.get("time_this_iter_s") or (self.process.now_ns - began_ns) / 1e9
        self.iteration += 1
        self.since_restore += 1
        self.time_total_s += took_s
        self.since_restore_s += took_s
        at_s = EPOCH_S + self.process.now_ns // 10**9
        auto = {
            "timestamp": at_s, "checkpoint_dir_name": None, DONE: False,
            "training_iteration": self.iteration, "trial_id": self.trial.trial_id,
            "date": date(self.process.now_ns), "time_this_iter_s": took_s,
            "time_total_s": self.time_total_s,
            "pid": self.state.pid, "hostname": f"ip-{self.state.ip.replace('.', '-')}",
            "node_ip": self.state.ip, "config": self.config,
            "time_since_restore": self.since_restore_s,
            "iterations_since_restore": self.since_restore,
            "experiment_tag": self.trial.experiment_tag,
        }  # fmt: skip
        return {**metrics, **{k: v for k, v in auto.items() if k not in metrics}}

    def keep(self, directory: str) -> Checkpoint:
        """A checkpoint in storage."""
        kept = Path(str(self.trial.path), f"checkpoint_{self.trial.n_checkpoints:06d}")
        self.trial.n_checkpoints += 1
        shutil.copytree(directory, kept, dirs_exist_ok=True)
        return Checkpoint(str(kept))

    def as_saved(self, checkpoint: Checkpoint, metrics: Mapping[str, Any]) -> TrialCheckpoint:
        """For the controller."""
        return TrialCheckpoint(
            trial_id=self.trial.trial_id, iteration=self.iteration,
            size_bytes=checkpoint.size_bytes, metrics=dict(metrics), state=checkpoint,
        )  # fmt: skip

    def taken_up(self, checkpoint: TrialCheckpoint) -> Script:
        """Read it, and count on from it."""
        yield sleep(round(checkpoint.size_bytes / WRITE_BYTES_PER_S * 1e9))
        self._restored(checkpoint.iteration, float(checkpoint.metrics.get("time_total_s", 0.0)))
        self.loaded = checkpoint.state


class FunctionTrainable(UserTrainable):
    """A function, in a fiber of its own from its first ``train`` on."""

    def __init__(self, process: CoreProcess, trial: Trial, where: Where) -> None:
        super().__init__(process, trial, where)
        self._fiber: Fiber | None = None
        self._go_on: Callable[[Any], object] | None = None
        self._reported = Event()
        self._saved: TrialCheckpoint | None = None
        self._last: dict[str, Any] = {}

    def setup(self, config: Mapping[str, Any]) -> None:
        """Nothing of the function runs yet."""
        self.config = dict(config)

    def train(self) -> Script:
        """Until its next report."""
        began_ns = self.process.now_ns
        self._reported = Event()
        if self._fiber is None:
            self._fiber = fiber_of(self.state, self._main, self._ended, self.where.name)
            _SESSIONS[self._fiber] = self
            self._fiber.start()
        else:
            assert self._go_on is not None, "train() of a function that has not reported"
            go_on, self._go_on = self._go_on, None
            go_on(None)
        value = yield wait_for(self._reported)
        if isinstance(value, TaskError) or DUPLICATE in value[0]:
            return value if isinstance(value, TaskError) else value[0]
        metrics, checkpoint = value
        self._last = result = self.filled(metrics, began_ns)
        if checkpoint is not None:
            result[SHOULD_CHECKPOINT] = True
            result["checkpoint_dir_name"] = Path(checkpoint.path).name
            self._saved = self.as_saved(checkpoint, result)
        return result

    def save(self) -> TrialCheckpoint | None:
        """The last one reported."""
        return self._saved

    def restore(self, checkpoint: TrialCheckpoint) -> Script:
        """What ``get_checkpoint`` will say."""
        yield from self.taken_up(checkpoint)
        self._saved = checkpoint

    def reset(self, trial: Trial) -> bool:
        """A new call of the function."""
        self.stop()
        self.trial, self.config = trial, dict(trial.config)
        self.loaded = self._saved = self._fiber = None
        self._restored(0, 0.0)
        return True

    def stop(self) -> None:
        """The function, which waits in ``report``, goes no further."""
        if self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            go_on(_OVER)

    def report(self, metrics: dict[str, Any], checkpoint: Checkpoint | None) -> None:
        """In its fiber."""
        if not isinstance(metrics, Mapping):
            raise TypeError(f"argument of type '{type(metrics).__name__}' is not iterable")
        fiber = this_fiber()
        kept = None
        if checkpoint is not None:
            kept = self.keep(checkpoint.path)
            fiber.lead_ns += round(kept.size_bytes / WRITE_BYTES_PER_S * 1e9)
        fiber.settle()

        def wait(then: Callable[[Any], object]) -> None:
            self._go_on = then
            hand_over(self._reported.set, (copy.deepcopy(metrics), kept))

        if fiber.block(wait) is _OVER:
            raise SystemExit(0)

    def _main(self) -> None:
        on_gpus(self.where.name, only_answers=False)
        function = load_program(self.where.code)
        output = function(copy.deepcopy(self.config))
        if inspect.isgenerator(output):
            for each in output:
                self._output(each)
        else:
            self._output(output)

    def _output(self, output: Any) -> None:
        if not output:
            return
        if isinstance(output, dict):
            self.report(output, None)
        elif isinstance(output, Number):
            self.report({DEFAULT_METRIC: output}, None)
        else:
            raise ValueError(
                "Invalid return or yield value. Either return/yield a single number or a "
                "dictionary object in your trainable function."
            )

    def _ended(self, value: Any) -> None:
        self._reported.set(value if isinstance(value, TaskError) else ({DUPLICATE: True}, None))


_OVER = object()
_SESSIONS: WeakKeyDictionary[Fiber, FunctionTrainable] = WeakKeyDictionary()


class ClassTrainable(UserTrainable):
    """An instance of a ``Trainable``; each of its methods runs in a fiber."""

    instance: Trainable

    def setup(self, config: Mapping[str, Any]) -> Script:
        """``__init__`` and ``setup``."""
        self.config = dict(config)

        def make() -> Trainable:
            cls = load_program(self.where.code)
            cls._trial = self.trial
            on_gpus(self.where.name, only_answers=False)
            instance: Trainable = cls(copy.deepcopy(self.config))
            return instance

        made = yield in_fiber(self.state, make, f"{self.where.name}.__init__")
        if not isinstance(made, TaskError):
            self.instance = made
        return made

    def train(self) -> Script:
        """``step``."""
        began_ns = self.process.now_ns
        value = yield in_fiber(self.state, self.instance.step, f"{self.where.name}.train")
        if isinstance(value, TaskError):
            return value
        self._last = self.filled(value, began_ns)
        self.instance._iteration = self.iteration  # noqa: SLF001  (its base class is ours)
        return self._last

    def save(self) -> Script:
        """``save_checkpoint``."""
        folder = Path(str(self.trial.path), f"new_{self.iteration:06d}")

        def save() -> Checkpoint:
            folder.mkdir(parents=True, exist_ok=True)
            said = self.instance.save_checkpoint(str(folder))
            if isinstance(said, dict):
                (folder / _DICT).write_bytes(dump_code(said))
            kept = self.keep(str(folder))
            shutil.rmtree(folder)
            return kept

        kept = yield in_fiber(self.state, save, f"{self.where.name}.save")
        if isinstance(kept, TaskError):
            return kept
        yield sleep(round(kept.size_bytes / WRITE_BYTES_PER_S * 1e9))
        return self.as_saved(kept, self._last)

    def restore(self, checkpoint: TrialCheckpoint) -> Script:
        """``load_checkpoint``."""
        yield from self.taken_up(checkpoint)
        path = checkpoint.state.path

        def load() -> None:
            file = Path(path, _DICT)
            self.instance.load_checkpoint(load_code(file.read_bytes()) if file.exists() else path)

        self.instance._iteration = self.iteration  # noqa: SLF001  (its base class is ours)
        return (yield in_fiber(self.state, load, f"{self.where.name}.restore"))

    def reset(self, trial: Trial) -> Script:
        """``reset_config``."""
        config = copy.deepcopy(trial.config)
        reset = self.instance.reset_config
        works = yield in_fiber(self.state, lambda: reset(config), f"{self.where.name}.reset")
        self.trial, self.config = trial, dict(trial.config)
        self.instance.config = dict(trial.config)
        self._restored(0, 0.0)
        return works

    def stop(self) -> Script:
        """``cleanup``."""
        if hasattr(self, "instance"):
            yield in_fiber(self.state, self.instance.cleanup, f"{self.where.name}.stop")


_DICT = "_dict_checkpoint.pkl"


@program_call
def report(metrics: dict[str, Any], *, checkpoint: Checkpoint | None = None) -> None:
    """``tune.report``; of no effect outside of a trial, as in Ray, which warns."""
    if (session := _session()) is not None:
        session.report(metrics, checkpoint)


@program_call
def get_checkpoint() -> Checkpoint | None:
    """``tune.get_checkpoint``; None outside of a trial, too."""
    session = _session()
    return session.loaded if session else None


def _session() -> FunctionTrainable | None:
    """Of the trial whose function calls; None: it is none's."""
    return _SESSIONS.get(this_fiber())


class TuneContext:
    """``tune.get_context()``: says nothing outside of a trial."""

    def __init__(self, session: FunctionTrainable | None) -> None:
        self._session = session

    def get_trial_id(self) -> str | None:
        """Of this trial."""
        return self._session.trial.trial_id if self._session else None

    def get_trial_name(self) -> str | None:
        """Of this trial."""
        return str(self._session.trial) if self._session else None

    def get_trial_resources(self) -> PlacementGroupFactory | None:
        """Of this trial."""
        return self._session.trial.resources if self._session else None

    def get_trial_dir(self) -> str | None:
        """Where its checkpoints are."""
        return str(self._session.trial.path) if self._session else None

    def get_experiment_name(self) -> str | None:
        """Of the experiment."""
        return self._session.where.folder.name if self._session else None


def get_context() -> TuneContext:
    """``tune.get_context``."""
    return TuneContext(_session())


def with_parameters(trainable: Any, **kwargs: Any) -> Any:
    """``tune.with_parameters``: values that are put once and fetched by each trial."""
    from raysim.rayapi import api

    _check_kind(trainable, "with_parameters")
    refs = {name: api.put(value) for name, value in kwargs.items()}
    if inspect.isclass(trainable):
        base: Any = trainable

        class Inner(base):  # type: ignore[misc]
            def setup(self, config: dict[str, Any]) -> None:
                super().setup(config, **{k: api.get(r) for k, r in refs.items()})

        Inner.__name__ = trainable.__name__
        return Inner

    def inner(config: dict[str, Any]) -> Any:
        return trainable(config, **{k: api.get(r) for k, r in refs.items()})

    inner.__name__ = getattr(trainable, "__name__", "tune_with_parameters")
    if hasattr(trainable, "_resources"):
        inner._resources = trainable._resources  # type: ignore[attr-defined]  # noqa: SLF001
    return inner


def _check_kind(trainable: Any, call: str) -> None:
    is_class = inspect.isclass(trainable)
    if not callable(trainable) or (is_class and not issubclass(trainable, Trainable)):
        raise ValueError(
            f"`tune.{call}() only works with function trainables or classes that inherit "
            f"from `tune.Trainable()`. Got type: {type(trainable)}."
        )


def with_resources(trainable: Any, resources: Any) -> Any:
    """``tune.with_resources``."""
    _check_kind(trainable, "with_resources")
    if isinstance(resources, dict):
        resources = of_resources(resources)
    elif not isinstance(resources, PlacementGroupFactory) and not callable(resources):
        raise ValueError(f"Invalid resource type for `with_resources()`: {type(resources)}")
    if not inspect.isclass(trainable):
        trainable._resources = resources  # noqa: SLF001  (where Ray keeps it)
        return trainable
    base: Any = trainable

    class ResourceTrainable(base):  # type: ignore[misc]
        @classmethod
        def default_resource_request(cls, config: dict[str, Any]) -> Any:
            return resources if isinstance(resources, PlacementGroupFactory) else resources(config)

    ResourceTrainable.__name__ = trainable.__name__
    return ResourceTrainable


def resources_of(trainable: Any) -> Callable[[Mapping[str, Any]], PlacementGroupFactory]:
    """What a trial of it asks for."""

    def ask(config: Mapping[str, Any]) -> PlacementGroupFactory:
        said: Any
        if inspect.isclass(trainable):
            user: Any = trainable
            said = user.default_resource_request(dict(config))
        else:
            said = getattr(trainable, "_resources", None)
            if callable(said):
                said = said(dict(config))
        if isinstance(said, Mapping):
            return of_resources(said)
        return said or PlacementGroupFactory()

    return ask
