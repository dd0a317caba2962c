"""The driver's loop: trials made, given actors, trained one result at a time, stopped.

Real counterpart: ``TuneController`` in ``ray/tune/execution/tune_controller.py`` (ray 2.60): one
event per step, in the order events came (Ray takes one of those ready at random). The loop is one
thread: each event, result and trial costs it what ``TuneCosts`` says, and it runs ahead of the
clock through events that wait, which is exact since later ones queue behind them.

Not modelled: exports, the console.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isgenerator
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Queue, Script, now, spawn, spend
from raysim.raycore.tasks import TaskError
from raysim.raylibs.tune.experiment import Experiment, TuneResult
from raysim.raylibs.tune.program import DONE, DUPLICATE
from raysim.raylibs.tune.progress import Announcer, PendingSave, Progress, flattened
from raysim.raylibs.tune.snapshots import Snapshots
from raysim.raylibs.tune.trial import Status, Trial, TrialCheckpoint
from raysim.raylibs.tune.trial_actors import ActorManager, Happened, TrackedActor
from raysim.raylibs.tune.trial_table import ActorCache, TrialTable


class TuneController:
    """Runs one experiment in a driver: ``result = yield from TuneController(...).run()``.

    Parameters
    ----------
    process
        The driver's.
    experiment
        What to do.
    streams
        Named random streams: of the search, the scheduler and each trial.
    rng
        Where searches and schedulers draw from; None: a stream of the experiment's name.
    cluster_cpus
        For the limit on pending trials.
    """

    def __init__(
        self,
        process: CoreProcess,
        experiment: Experiment,
        streams: Any,
        *,
        rng: Any = None,
        cluster_cpus: float = 1.0,
    ) -> None:
        self._process = process
        self._experiment = experiment
        self._rng = rng if rng is not None else streams(f"tune/{experiment.name}")
        self._costs = experiment.defaults.costs.at_speed(process.costs.tune_speed)
        self._scheduler = experiment.trial_scheduler()
        self.search_alg = experiment.search(self._rng)
        limit = self.search_alg.max_pending_trials(cluster_cpus)
        self.max_pending = experiment.defaults.max_pending_trials or limit
        self._inbox = Queue()
        said_s = experiment.defaults.trainable_core_s
        core_s = process.costs.tune_trial_core_s if said_s is None else said_s
        self._actors = ActorManager(process, self._inbox, experiment.made_by(streams), core_s)
        self._table = TrialTable()
        self._cache = ActorCache()
        self._actor_of: dict[Trial, TrackedActor] = {}
        self._staged: dict[Trial, None] = {}
        self._resetting: dict[Trial, None] = {}
        self._progress = Progress(experiment, self._scheduler, self.search_alg)
        self._todo: list[Script] = []
        """What the scheduler's plain calls have the driver do."""
        self._tell = Announcer(experiment.observer, self._todo, self._table.trials)
        self._has_errored = self._out_of_time = False
        self._snapshots = Snapshots(experiment.defaults, experiment.num_to_keep)
        self._began_ns = self._at_ns = 0
        """When it began, and where the loop is, ahead of the clock."""
        self._busy_s = self._lag_s = 0.0

    # ---- what schedulers ask ---------------------------------------------------------------------

    def get_trials(self) -> Sequence[Trial]:
        """All, in order."""
        return list(self._table.trials)

    def get_live_trials(self) -> Sequence[Trial]:
        """Those not ended."""
        return [t for t in self._table.trials if not t.is_finished()]

    def first_waiting(self) -> Trial | None:
        """The first PENDING, else the first PAUSED."""
        return self._table.first_waiting()

    def rng(self) -> Any:
        """The search's stream."""
        return self._rng

    def stop_trial(self, trial: Trial) -> None:
        """Stop it, in whatever state."""
        if trial.is_finished():
            return
        if trial.status == "RUNNING":
            self._scheduler.on_trial_complete(self, trial, flattened(trial.last_result))
            self.search_alg.on_trial_complete(trial.trial_id, flattened(trial.last_result))
        else:
            self._scheduler.on_trial_remove(self, trial)
            self.search_alg.on_trial_complete(trial.trial_id)
        self._tell("trial_complete", trial=trial)
        self._end(trial, "TERMINATED")

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Give its resources to others, after a save if it is to have one."""
        self._progress.forget(trial)
        if trial not in self._actor_of:
            return
        if should_checkpoint:
            self._progress.pause_after_save(trial)
            self.schedule_trial_save(trial)
        else:
            self._end(trial, "PAUSED")

    def schedule_trial_save(self, trial: Trial, result: object = None) -> PendingSave | None:
        """Have it save; what ``resolve``s to the checkpoint."""
        del result
        actor = self._actor_of.get(trial)
        if actor is None:
            return None
        trial.is_saving = True
        pending = PendingSave(self._do)
        self._todo.append(self._save(actor, pending))
        return pending

    # ---- the loop --------------------------------------------------------------------------------

    def run(self) -> Script:
        """``fit()``: a ``TuneResult``."""
        self._began_ns = yield now()
        for trial in self._experiment.restored:
            self._add(trial)
        budget_s = self._experiment.time_budget_s
        if budget_s is not None:
            self._process.after(round(budget_s * 1e9), self._time_is_up)
        while not self._finished():
            self._tell("step_begin")
            yield from self._add_trials()
            if self._finished():  # there were no more: Ray's loop would wait in vain for 0.1 s
                self._tell("step_end")
                break
            if self._table.any_waiting:
                yield from self._add_actors()
            event = self._inbox.get_nowait() if len(self._inbox) else (yield self._inbox.get())
            if event.kind != "train" or isinstance(event.value, TaskError):
                yield from self._handle(event)
            elif event.epoch == event.actor.epoch and event.actor.trial is not None:
                yield from self._trained(event, event.actor.trial)
            if self._out_of_time or self._progress.stops_all(has_errored=self._has_errored):
                self._end_all()
            self._tell("step_end")
            if self._todo:
                yield from self._do()
            if self._snapshots.due(self._at_ns):
                yield from self._snapshot()
            if self._cache.size:
                over = self.search_alg.is_finished() and not self._staged
                yield from self._drop_cached(force_all=over and self._cache.wanted == 0)
        yield from self._clean_up()
        self._tell("experiment_end")
        yield from self._do()
        self._experiment.written(self._table.trials, self.search_alg)
        return self._result((yield now()))

    def _end_all(self) -> None:
        self.search_alg.set_finished()
        for trial in self.get_live_trials():
            self._end(trial, "TERMINATED")

    def _finished(self) -> bool:
        return self._table.all_finished and self.search_alg.is_finished()

    def _time_is_up(self, _: object) -> None:
        self._out_of_time = True
        self._wake(_)

    def _add_trials(self) -> Script:
        while not self.search_alg.is_finished() and self._table.count("PENDING") < self.max_pending:
            trial = self.search_alg.next_trial()
            if trial is None:
                break
            yield from self._spend(self._costs.trial_s)
            self._add(trial)

    def _add(self, trial: Trial) -> None:
        if self._experiment.on_trial is not None:
            self._experiment.on_trial(trial)
        self._table.add(trial)
        self._scheduler.on_trial_add(self, trial)
        self._snapshots.changed(trial)

    def _add_actors(self) -> Script:
        chosen = self._scheduler.choose_trial_to_run(self)
        if chosen is not None:
            if chosen not in self._staged and chosen not in self._actor_of:
                self._table.set(chosen, "PENDING")
                yield from self._stage(chosen)
            else:
                yield from self._reuse(chosen)
        kept: list[Trial] = []
        queue = self._table.queue
        while queue and self._actors.num_pending < self.max_pending:
            trial = queue.popleft()
            if trial.status != "PENDING":
                continue
            if trial in self._actor_of:
                kept.append(trial)
            elif trial in self._staged:
                yield from self._reuse(trial)
            else:
                yield from self._stage(trial)
        queue.extendleft(reversed(kept))
        if self._cache.size:
            for trial in [t for t in queue if t.status == "PENDING"]:
                if self._cache.has(trial.resources) and (yield from self._reuse(trial)):
                    if trial not in self._staged:
                        self._staged[trial] = None
                        self._cache.want(trial.resources, 1)
                    break

    def _stage(self, trial: Trial) -> Script:
        self._staged[trial] = None
        self._cache.want(trial.resources, 1)
        if not (yield from self._reuse(trial)):
            self._actor_of[trial] = yield from self._actors.add(trial.resources, trial)

    def _reuse(self, trial: Trial) -> Script:
        """Whether a cached actor becomes this trial."""
        if trial in self._resetting:
            return True
        if not self._cache.has(trial.resources):
            return False
        cached = self._cache.pop(trial.resources)
        original = self._actor_of.pop(trial, None)
        if original is not None:
            yield from self._actors.remove(original)
        self._actor_of[trial] = cached
        cached.trial = trial
        self._resetting[trial] = None
        yield from self._actors.call(cached, "reset", trial)
        return True

    # ---- events ----------------------------------------------------------------------------------

    def _handle(self, event: Happened) -> Script:
        kind, actor, epoch, value, at_ns = event
        if kind == "wake":
            return
        if kind == "placed":
            yield from self._actors.placed(value)
            return
        assert actor is not None
        if kind == "stopped" or (isinstance(value, TaskError) and actor.stopping):
            yield from self._actors.cleaned(actor)
            return
        if epoch != actor.epoch or actor.trial is None:
            return
        self._lag_s += ((yield now()) - at_ns) / 1e9
        yield from self._spend(self._costs.event_s)
        trial = actor.trial
        if isinstance(value, TaskError):
            yield from self._failed(trial, actor, value)
        elif kind == "started":
            yield from self._started(trial, actor)
        elif kind == "reset":
            del self._resetting[trial]
            if value:
                yield from self._started(trial, actor)
            else:
                self._fail(trial, TaskError("TASK_EXECUTION_EXCEPTION", _NO_RESET))
        elif kind == "save":
            self._saved(trial, value)
        elif kind == "restore":
            yield from self._train(trial)

    def _started(self, trial: Trial, actor: TrackedActor) -> Script:
        actor.started = True
        self._unstage(trial)
        self._tell("trial_start", trial=trial)
        self._table.set(trial, "RUNNING")
        self._snapshots.changed(trial)
        at_ns = yield now()
        trial.started_ns = at_ns if trial.started_ns is None else trial.started_ns
        trial.runs.append((at_ns, -1))
        if trial.checkpoint is not None:
            yield from self._actors.call(actor, "restore", trial.checkpoint)
        else:
            yield from self._train(trial)

    def _unstage(self, trial: Trial) -> None:
        """It, or another staged one that asks for the same."""
        like = trial if trial in self._staged else next(
            (t for t in self._staged if t.resources == trial.resources), None
        )  # fmt: skip
        assert like is not None, f"{trial} started and nobody asked for its resources"
        del self._staged[like]
        self._cache.want(like.resources, -1)

    def _train(self, trial: Trial) -> Script:
        actor = self._actor_of.get(trial)
        if actor is None:
            return  # the experiment has ended meanwhile
        settings, experiment = self._experiment.defaults, self._experiment
        length = settings.result_buffer_length
        if length > 1 and not experiment.checkpoint_at_end:
            if experiment.checkpoint_freq:
                length = min(length, experiment.checkpoint_freq)
            tenths = self._table.count("RUNNING") // 10
            time_s = min(settings.result_buffer_max_time_s, tenths)
            yield from self._actors.call(actor, "train_buffered", length, round(time_s * 1e9))
        else:
            yield from self._actors.call(actor, "train")

    def _trained(self, event: Happened, trial: Trial) -> Script:
        """The hot path: results have come."""
        results = event.value if isinstance(event.value, list) else [event.value]
        costs = self._costs
        each_s = costs.logger_result_s if self._experiment.loggers else costs.result_s
        cost_s = costs.event_s + each_s * (len(results) - (DUPLICATE in results[-1]))
        self._busy_s += cost_s
        self._at_ns = yield spend(round(cost_s * 1e9))
        self._lag_s += (self._at_ns - event.at_ns) / 1e9 - cost_s
        progress = self._progress
        self._snapshots.changed(trial)
        trial.last_result_ns = self._at_ns
        for reported in results:
            result = reported
            if DUPLICATE in result:
                result = {**trial.last_result, DONE: True, DUPLICATE: True}
            decision = progress.decide(self, trial, result)
            if isgenerator(decision):
                decision = yield from decision
            if DUPLICATE not in reported:
                self._tell("trial_result", trial=trial, result=result)
            if progress.note(trial, result, decision):
                self.schedule_trial_save(trial)
            if progress.put(trial, decision) and decision == "STOP":
                break
        self._carry_out(trial, after_save=False)

    def _carry_out(self, trial: Trial, *, after_save: bool) -> None:
        decision = self._progress.take(trial)
        if decision == "CONTINUE":
            if not self._actors.train_shortly(self._actor_of[trial], self._at_ns):
                self._todo.append(self._train(trial))
        elif decision == "PAUSE":
            self.pause_trial(trial, should_checkpoint=not after_save)
        elif decision == "STOP":
            self.stop_trial(trial)

    def _save(self, actor: TrackedActor, pending: PendingSave) -> Script:
        yield spawn(self._saving(actor, actor.epoch, pending))

    def _saving(self, actor: TrackedActor, epoch: int, pending: PendingSave) -> Script:
        assert actor.handle is not None, "a save of an actor that has not been started"
        value = yield from actor.handle.ask("save")
        pending.answered.set(value)
        self._inbox.put_nowait(Happened("save", actor, epoch, value, self._process.now_ns))

    def _saved(self, trial: Trial, checkpoint: TrialCheckpoint | None) -> None:
        trial.is_saving = False
        if checkpoint is not None:
            self._experiment.keep(trial, checkpoint)
            self._tell("checkpoint", trial=trial, checkpoint=checkpoint.state)
            self._snapshots.saved(trial)
        self._tell("trial_save", trial=trial)
        self._progress.saved(trial)
        self._carry_out(trial, after_save=True)

    # ---- ends ------------------------------------------------------------------------------------

    def _failed(self, trial: Trial, actor: TrackedActor, error: TaskError) -> Script:
        """Of its actor or of a call; it may start again."""
        if not actor.started:
            self._unstage(trial)
            self._table.set(trial, "RUNNING")
        self._resetting.pop(trial, None)
        if error.error_type != "TASK_EXECUTION_EXCEPTION":
            actor.stopping = True
            yield from self._actors.cleaned(actor)
        trial.num_failures += 1
        trial.error = error
        self._has_errored = True
        limit = self._experiment.max_failures
        if trial.num_failures <= limit or limit < 0:
            self._progress.forget(trial)
            self._scheduler.on_trial_error(self, trial)
            self._end(trial, "PENDING")
            self._table.move_to_end(trial)
            self._scheduler.on_trial_add(self, trial)
            self._tell("trial_recover", trial=trial)
        else:
            self._fail(trial, error)

    def _fail(self, trial: Trial, error: TaskError) -> None:
        trial.error = error
        self._has_errored = True
        self._scheduler.on_trial_error(self, trial)
        self.search_alg.on_trial_complete(trial.trial_id, error=True)
        self._end(trial, "ERROR")
        self._tell("trial_error", trial=trial)

    def _end(self, trial: Trial, status: Status) -> None:
        """It leaves its actor, which is kept for another or stops (``_schedule_trial_stop``)."""
        trial.is_saving = False
        self._table.set(trial, status)
        self._snapshots.changed(trial)
        at_ns = self._process.now_ns
        if trial.runs and trial.runs[-1][1] < 0:
            trial.runs[-1] = (trial.runs[-1][0], max(at_ns, trial.runs[-1][0]))
        if trial.is_finished():
            trial.ended_ns = at_ns
        actor = self._actor_of.pop(trial, None)
        if actor is None:
            return
        actor.trial = None
        actor.epoch += 1
        kept = status in ("TERMINATED", "PAUSED") and self._may_cache(actor)
        if kept and self._cache.put(trial.resources, actor):
            return
        if not actor.started and trial in self._staged:
            self._unstage(trial)
        self._todo.append(self._actors.remove(actor))

    def _may_cache(self, actor: TrackedActor) -> bool:
        if not self._experiment.reuse_actors or not actor.started or actor.stopping:
            return False
        return bool(self._staged) or not self.search_alg.is_finished()

    # ---- the rest of a step ----------------------------------------------------------------------

    def _do(self) -> Script:
        while self._todo:
            todo = list(self._todo)
            self._todo.clear()
            for each in todo:
                yield from each

    def _drop_cached(self, *, force_all: bool) -> Script:
        for actor in self._cache.flush(force_all=force_all):
            yield from self._actors.remove(actor)

    def _snapshot(self) -> Script:
        cost_s = self._snapshots.cost_s()
        yield from self._spend(cost_s)
        self._experiment.written(self._table.trials, self.search_alg)
        self._snapshots.written(self._at_ns, cost_s)

    def _clean_up(self) -> Script:
        """``cleanup``: actors stop; Ray waits for them at most 5 s."""
        for actor in list(self._actor_of.values()):
            yield from self._actors.remove(actor)
        yield from self._drop_cached(force_all=True)
        until_ns = (yield now()) + CLEANUP_NS
        self._process.after(CLEANUP_NS, self._wake)
        while self._actors.num_live and (yield now()) < until_ns:
            event: Happened = yield self._inbox.get()
            if event.actor is not None and event.kind == "stopped":
                yield from self._actors.cleaned(event.actor)
            elif event.kind == "placed":
                yield from self._actors.placed(event.value)
        yield from self._actors.clear()

    def _wake(self, _: object) -> None:
        self._inbox.put_nowait(Happened("wake", None, 0, None, self._process.now_ns))

    def _spend(self, cost_s: float) -> Script:
        self._busy_s += cost_s
        self._at_ns = yield spend(round(cost_s * 1e9))

    def _result(self, now_ns: int) -> TuneResult:
        return TuneResult(
            trials=tuple(self._table.trials),
            began_ns=self._began_ns,
            ended_ns=now_ns,
            n_results=self._progress.n_results,
            driver_busy_s=self._busy_s,
            results_lag_s=self._lag_s,
            actors_started=self._actors.num_started,
        )


CLEANUP_NS = 5 * 10**9
"""``_cleanup_trials``."""
_NO_RESET = "Trainable runner reuse requires reset_config() to be implemented and return True."
