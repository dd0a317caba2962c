"""The run's control loop: ``TrainController``.

Real counterpart: ``execution/controller/{controller,state}.py``: an actor without CPUs on the
driver's node. States and what leads from one to another are Ray's; a running group is polled every
2 s, and only polls that find something are played. There is no partial repair: every failure and
every other size tears down all workers and starts all again, from the last checkpoint that every
rank has reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Script, compute, drop, now, sleep, wait
from raysim.raycore.tasks import ActorOptions, NodeAffinity, Ref, TaskError
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.train.checkpoints import CheckpointManager
from raysim.raylibs.train.coordinator import COORDINATOR
from raysim.raylibs.train.defaults import RUN_ENV
from raysim.raylibs.train.gang import PreemptionInfo
from raysim.raylibs.train.policies import Cause, FailurePolicy, possible_workers
from raysim.raylibs.train.preemption import WATCHER, merged
from raysim.raylibs.train.records import RunRecord, Stop
from raysim.raylibs.train.reports import Checkpoint, TrainingReport, WorkerStatus
from raysim.raylibs.train.trainer import TrainerSpec
from raysim.raylibs.train.worker_group import START_TIMED_OUT, WorkerGroup
from raysim.units import to_ns

State = Literal[
    "INITIALIZING", "SCHEDULING", "RESCHEDULING", "RUNNING", "PREEMPTING", "RESTARTING", "RESIZING",
    "SHUTTING_DOWN", "FINISHED", "ERRORED",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """What ``fit()`` comes to."""

    ok: bool
    record: RunRecord
    error: TaskError | None
    cause: str
    """Of the error: ``worker``, ``start`` or ``preemption``."""
    checkpoint: Checkpoint | None
    """The latest."""
    metrics: Mapping[str, Any] | None
    """Of that one."""
    best: tuple[tuple[Checkpoint, Mapping[str, Any]], ...]
    """Those that are kept, worst or oldest first."""
    return_value: Any = None
    failures: Mapping[int, TaskError] = field(default_factory=dict)
    """Of the last group, by rank, where workers failed."""


class TrainController:
    """One per run."""

    def __init__(self, process: CoreProcess, spec: TrainerSpec, record: RunRecord) -> None:
        self.process = process
        self.spec = spec
        self.record = record
        self.manager = CheckpointManager(spec.run_config.checkpoint_config, record, spec.earlier)
        self.failures = FailurePolicy(spec.run_config.failure_config)
        self.group: WorkerGroup | None = None
        self._size = spec.scaling_config.max_workers
        self._then: State = "FINISHED"
        self._error: TaskError | None = None
        self._failures: dict[int, TaskError] = {}
        self._cause = ""
        self._stuck = False
        """Ranks stand in a collective of NCCL that one has left with an error."""
        self._value: Any = None
        self._coordinator: ActorHandle | None = None
        self._requester = f"train-{spec.run_config.name}"
        self._watcher: ActorHandle | None = None
        self._preemption: PreemptionInfo | None = None
        self._noticed_ns = 0
        self._considered_ns = 0
        self._change: Ref | None = None

    def run(self) -> Script:
        """From the first state to the last; its class and its backend import what workers do."""
        state: State = "INITIALIZING"
        yield compute(self.process.costs.train_worker_core_s)
        yield from self._request()
        steps = {
            "INITIALIZING": self._decide, "RESTARTING": self._decide, "RESCHEDULING": self._decide,
            "SCHEDULING": self._schedule, "RUNNING": self._poll, "PREEMPTING": self._preempting,
            "RESIZING": self._resize, "SHUTTING_DOWN": self._shut_down,
        }  # fmt: skip
        while state in steps:
            self.record.state((yield now()), state)
            state = yield from steps[state]()
        at_ns = yield now()
        self.record.state(at_ns, state)
        latest = self.manager.latest
        return TrainOutcome(
            ok=state == "FINISHED", record=self.record, error=self._error, cause=self._cause,
            checkpoint=latest and latest[0], metrics=latest and latest[1],
            best=tuple(self.manager.results), return_value=self._value, failures=self._failures,
        )  # fmt: skip

    # ---- how large -------------------------------------------------------------------------------

    def _request(self) -> Script:
        here = NodeAffinity(node_id=self.process.me.node_id)
        tick_ns = to_ns(self.spec.defaults.coordinator_tick_s)
        self._coordinator = yield from COORDINATOR.options(
            strategy=here, runtime_env=RUN_ENV
        ).remote(tick_ns)
        scaling = self.spec.scaling_config
        bundles = [scaling.resources] * scaling.max_workers
        yield from self._coordinator.ask("request_resources", self._requester, bundles)

    def _decide(self) -> Script:
        """A fixed group is started whatever there is; an elastic one waits for its fewest."""
        scaling = self.spec.scaling_config
        if not scaling.elastic:
            return "SCHEDULING"
        self.record.phase((yield now()), "waiting")
        assert self._coordinator is not None, "no coordinator"
        until_ns = (yield now()) + to_ns(self.spec.patience_s)
        while True:
            reserved = yield from self._reserved()
            self._size = possible_workers(scaling, reserved)
            if self._size >= scaling.min_workers:
                return "SCHEDULING"
            refs = yield self._coordinator.call("wait_for_change", self._requester, reserved)
            if isinstance(refs, TaskError):
                return self._give_up()
            changed = yield wait(refs, 1, max(0, until_ns - (yield now())))
            yield drop(*refs)
            if not any(changed):
                return self._give_up()
            # it asks again once a second, half of which is over in the mean
            yield sleep(to_ns(self.spec.defaults.reserved_resources_interval_s / 2))

    def _reserved(self) -> Script:
        assert self._coordinator is not None, "no coordinator"
        return (yield from self._coordinator.ask("get_reserved_resources", self._requester))

    def _next_look_ns(self, at_ns: int) -> int:
        """When the elastic policy next considers the group's size, at the earliest now."""
        group, scaling = self.group, self.spec.scaling_config
        assert group is not None, "no group to consider"
        interval_s = scaling.elastic_resize_monitor_interval_s
        if interval_s is None:
            interval_s = self.spec.defaults.elastic_resize_monitor_interval_s
        look_ns = self._considered_ns
        while True:
            look_ns = group.polls.at(look_ns + to_ns(interval_s))
            if look_ns >= at_ns:
                return look_ns
            self._considered_ns = look_ns

    def _watch_size(self) -> Script:
        reserved = yield from self._reserved()
        assert self._coordinator is not None, "no coordinator"
        refs = yield self._coordinator.call("wait_for_change", self._requester, reserved)
        self._change = None if isinstance(refs, TaskError) else refs[0]
        fits = possible_workers(self.spec.scaling_config, reserved)
        return fits

    # ---- states ----------------------------------------------------------------------------------

    def _schedule(self) -> Script:
        yield from self._end_group()
        self._failures = {}
        group = WorkerGroup(self.process, self.spec, self.record, self._size)
        group.gang.manager = self.manager
        latest = self.manager.latest
        begin_ns = yield now()
        restored = latest[0] if latest is not None else None
        error = yield from group.start(restored, self._rounds())
        if group.rounds > 1 or (group.rounds and error is None):
            first_ns = begin_ns + to_ns(self.spec.defaults.worker_group_start_timeout_s)
            self.record.state(first_ns, "RESCHEDULING")
            self.record.state(first_ns, "SCHEDULING")
        if error is not None:
            return (yield from self._failed("start", error, max(1, group.rounds)))
        self.failures.count["start"] += group.rounds
        self.group = group
        self.manager.begin(self._size)
        self._preemption = None
        self._considered_ns = yield now()
        ranks_of = {n: tuple(ranks) for n, ranks in group.gang.nodes.items()}
        interval_ns = to_ns(self.spec.defaults.preemption_poll_interval_s)
        self._watcher = yield from WATCHER.remote(ranks_of, group.workers, interval_ns)
        refs = yield self._watcher.call("watch")
        if not isinstance(refs, TaskError):
            yield drop(*refs)
        if self.spec.scaling_config.elastic:
            yield from self._watch_size()
        return "RUNNING"

    def _rounds(self) -> int:
        """Placement groups to wait for; an elastic run decides anew after each."""
        if self.spec.scaling_config.elastic:
            return 1
        left = self.failures.left("start")
        if left is not None:
            return left + 1
        return int(self.spec.patience_s // self.spec.defaults.worker_group_start_timeout_s)

    def _look(self, until_ns: int | None) -> Script:
        """Poll; what was found, with reports registered."""
        assert self.group is not None, "no group to poll"
        found: dict[int, WorkerStatus | TaskError]
        found = yield from self.group.poll(until_ns, self._change)
        reports: dict[int, TrainingReport] = {}
        for rank, status in found.items():
            failed = status if isinstance(status, TaskError) else status.error
            if failed is not None:
                self._failures[rank] = failed
            if isinstance(status, TaskError):
                continue
            if status.report is not None:
                reports[rank] = status.report
            self._preemption = merged(self._preemption, status.preemption)
            if rank == 0 and not status.running:
                self._value = status.return_value
        complete = self.manager.collect(reports, (yield now()))
        if self.spec.watched is not None:
            for each in complete:
                yield from self.spec.watched.reported(self.process, each)
        return found

    def _poll(self) -> Script:
        until_ns = None
        if self.spec.scaling_config.elastic and self._change is None:
            until_ns = self._next_look_ns((yield now()))
        found = yield from self._look(until_ns)
        assert self.group is not None, "no group to poll"
        if self.group.finished:
            self._then = "FINISHED"
            return "SHUTTING_DOWN"
        if self._preemption is not None:
            self._noticed_ns = yield now()
            return "PREEMPTING"
        error = _error(found)
        if error is not None:
            if self.spec.watched is not None:
                yield from self.spec.watched.failed(self.process, self._failures)
            return (yield from self._failed(_cause(error), error))
        if self.spec.scaling_config.elastic:
            return (yield from self._consider(until_ns))
        return "RUNNING"

    def _consider(self, until_ns: int | None) -> Script:
        """Whether the group should have another size; once a minute at most."""
        assert self.group is not None, "no group to consider"
        if self._change is not None and self._change not in self.group.also:
            yield drop(self._change)
            self._change = None
        at_ns = yield now()
        if self._change is not None or until_ns is None or at_ns < until_ns:
            return "RUNNING"
        self._considered_ns = at_ns
        fits = yield from self._watch_size()
        if fits == self._size or fits < self.spec.scaling_config.min_workers:
            return "RUNNING"
        self._size = fits
        return "RESIZING"

    def _preempting(self) -> Script:
        """Until every rank has ended, or the deadline has passed."""
        assert self._preemption is not None, "no preemption to wait for"
        deadline_ns = self._preemption.deadline_ns
        if deadline_ns is None:
            deadline_ns = self._noticed_ns + to_ns(self.spec.defaults.preemption_deadline_s)
        deadline_ns += to_ns(self.spec.run_config.failure_config.preemption_grace_s)
        found = yield from self._look(deadline_ns)
        assert self.group is not None, "no group to poll"
        if self.group.finished:
            self._then = "FINISHED"
            return "SHUTTING_DOWN"
        error = _error(found)
        if error is not None and _cause(error) != "preemption":
            return (yield from self._failed("worker", error))
        if self.group.ended or (yield now()) >= deadline_ns:
            text = TaskError("TASK_EXECUTION_EXCEPTION", "PreemptionError: the grace is over")
            return (yield from self._failed("preemption", error or text))
        return "PREEMPTING"

    def _resize(self) -> Script:
        at_ns = yield now()
        self._note_stop(at_ns, "resize", f"to {self._size} workers")
        yield sleep(0)
        return "SCHEDULING"

    def _give_up(self) -> State:
        hours = self.spec.patience_s / 3600
        least = self.spec.scaling_config.min_workers
        self._error = TaskError(
            "GET_TIMEOUT", f"waited {hours:g} h for {least} workers; Ray Train would go on for ever"
        )
        self._cause, self._then = "start", "ERRORED"
        return "SHUTTING_DOWN"

    def _failed(self, cause: Cause, error: TaskError, failures: int = 1) -> Script:
        at_ns = yield now()
        if error is not START_TIMED_OUT:
            self._note_stop(at_ns, cause, error.message or error.error_type)
        elif not self.spec.scaling_config.elastic and self.failures.left(cause) is None:
            return self._give_up()
        if self.group is not None:
            user = error.error_type == "TASK_EXECUTION_EXCEPTION" and cause == "worker"
            several = self.group.world_size > 1 and not self.group.ended
            self._stuck = user and several and self.spec.scaling_config.backend == "nccl"
        decision = self.failures.decide(cause, failures)
        if decision == "RETRY":
            return "RESCHEDULING" if cause == "start" else "RESTARTING"
        self._error, self._cause, self._then = error, cause, "ERRORED"
        return "SHUTTING_DOWN"

    def _note_stop(self, at_ns: int, cause: str, text: str) -> None:
        record = self.record
        broke_ns, record.broke_ns = record.broke_ns, None
        broke_ns = at_ns if broke_ns is None else broke_ns
        record.stops.append(
            Stop(at_ns=broke_ns, found_ns=at_ns, cause=cause, text=text, step=record.step)
        )

    def _end_group(self) -> Script:
        if self._watcher is not None:
            yield self._watcher.kill()
        if self._change is not None:
            yield drop(self._change)
        self._watcher = self._change = None
        group, self.group = self.group, None
        if group is not None:
            yield from group.end(stuck=self._stuck)
        self._stuck = False

    def _shut_down(self) -> Script:
        yield from self._end_group()
        assert self._coordinator is not None, "no coordinator"
        yield from self._coordinator.ask("cancel_request", self._requester)
        return self._then


def _error(found: Mapping[int, WorkerStatus | TaskError]) -> TaskError | None:
    """Of a poll's; a preemption wins over what it brings about in other ranks."""
    errors = [s if isinstance(s, TaskError) else s.error for s in found.values()]
    there = [e for e in errors if e is not None]
    preempted = [e for e in there if _cause(e) == "preemption"]
    return next(iter(preempted or there), None)


def _cause(error: TaskError) -> Cause:
    """``RayActorError.preempted``, as a message says it."""
    died = error.error_type == "ACTOR_DIED" and "preempt" in error.message
    return "preemption" if died else "worker"


CONTROLLER = ActorClass(cls=TrainController, actor=ActorOptions(is_async=True), runtime_env=RUN_ENV)
