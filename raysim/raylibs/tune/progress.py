"""What becomes of a trial after a result: stop rules, the scheduler, saves that come between.

Real counterpart: ``_process_trial_result``, ``_queue_decision`` and ``_cached_trial_decisions`` of
``TuneController`` (ray 2.60). A decision waits while the trial saves; STOP beats PAUSE beats
CONTINUE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raysim.raycore.scripts import Event, Script, wait_for
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.experiment import Experiment, Observer
from raysim.raylibs.tune.program import DONE, DUPLICATE, SHOULD_CHECKPOINT
from raysim.raylibs.tune.schedulers import TrialScheduler
from raysim.raylibs.tune.search.algorithms import SearchAlgorithm
from raysim.raylibs.tune.trial import Trial


def flattened(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """``flatten_dict``: keys of inner dictionaries joined by ``/``, after all others."""
    if not any(isinstance(value, Mapping) for value in result.values()):
        return result
    flat = {key: value for key, value in result.items() if not isinstance(value, Mapping)}
    for key, value in result.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}/{inner}": each for inner, each in flattened(value).items()}
    return flat


class Progress:
    """Decisions made and not yet carried out."""

    def __init__(
        self, experiment: Experiment, scheduler: TrialScheduler, search_alg: SearchAlgorithm
    ) -> None:
        self._experiment = experiment
        self._scheduler = scheduler
        self._search_alg = search_alg
        self._waiting: dict[Trial, str] = {}
        """For a save."""
        self._queued: dict[Trial, str] = {}
        self.n_results = 0

    def decide(self, controller: Any, trial: Trial, result: Mapping[str, Any]) -> Any:
        """STOP by the experiment's rules; else what the scheduler says, perhaps by a script."""
        stop, flat = self._experiment.stop, flattened(result)
        if result.get(DONE):
            return "STOP"
        if callable(stop):
            if stop(trial.trial_id, result):
                return "STOP"
        elif any(name in flat and flat[name] >= value for name, value in stop.items()):
            return "STOP"
        return self._scheduler.on_trial_result(controller, trial, flat)

    def stops_all(self, *, has_errored: bool) -> bool:
        """Whether the experiment ends now, whatever its trials do."""
        stop_all = self._experiment.stop_all
        return (self._experiment.fail_fast and has_errored) or (stop_all is not None and stop_all())

    def note(self, trial: Trial, result: dict[str, Any], decision: str) -> bool:
        """The trial has reported; whether it is to save now."""
        duplicate = result.pop(DUPLICATE, False)
        force = bool(result.pop(SHOULD_CHECKPOINT, False)) and not duplicate
        if decision == "STOP":
            result[DONE] = True
        else:
            self._search_alg.on_trial_result(trial.trial_id, flattened(result))
        trial.last_result = result
        if not duplicate:
            self.n_results += 1
            trial.n_results += 1
            if self._experiment.keep_results:
                trial.results.append(result)
            if self._experiment.on_result is not None:
                self._experiment.on_result(trial, result)
        return decision != "PAUSE" and (force or self._is_due(result))

    def put(self, trial: Trial, decision: str) -> bool:
        """To be carried out now (True), or after the save that goes on."""
        if trial.is_saving:
            if trial not in self._waiting or decision in ("PAUSE", "STOP"):
                self._waiting[trial] = decision
            return False
        old = self._queued.setdefault(trial, decision)
        if old != "STOP" and decision in ("STOP", "PAUSE"):
            self._queued[trial] = decision
        return True

    def take(self, trial: Trial) -> str | None:
        """What is to be done now."""
        return self._queued.pop(trial, None)

    def saved(self, trial: Trial) -> None:
        """Its save is over."""
        decision = self._waiting.pop(trial, None)
        if decision is not None:
            self.put(trial, decision)

    def pause_after_save(self, trial: Trial) -> None:
        """Whatever else was to be done."""
        self._waiting[trial] = "PAUSE"

    def forget(self, trial: Trial) -> None:
        """What waits for its save does not matter any more."""
        self._waiting.pop(trial, None)

    def _is_due(self, result: Mapping[str, Any]) -> bool:
        experiment = self._experiment
        if result.get(DONE) and experiment.checkpoint_at_end:
            return True
        freq = experiment.checkpoint_freq
        return freq > 0 and result.get("training_iteration", 0) % freq == 0


class Announcer:
    """Tells the experiment's observer what has happened, once the driver has nothing else to do."""

    def __init__(
        self, observer: Observer | None, todo: list[Script], trials: Iterable[Trial]
    ) -> None:
        self._observer = observer
        self._todo = todo
        self._trials = trials
        self._iteration = 0

    def __call__(self, event: str, **what: Any) -> None:
        """An event of Ray's ``Callback``, without its ``on_``."""
        if self._observer is None:
            return
        self._iteration += event == "step_end"
        said = {"trials": list(self._trials), **what}
        if event != "experiment_end":
            said["iteration"] = self._iteration
        self._todo.append(self._observer(event, said))


class PendingSave:
    """A save that has been asked for."""

    __slots__ = ("_do", "answered")

    def __init__(self, do: Callable[[], Script]) -> None:
        self._do = do
        self.answered = Event()

    def resolve(self) -> Script:
        """Wait for it, as Ray's driver blocks: the checkpoint, or None."""
        yield from self._do()
        value = yield wait_for(self.answered)
        return None if isinstance(value, TaskError) else value
