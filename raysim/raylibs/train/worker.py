"""One training worker: ``RayTrainWorker``.

Real counterpart: ``execution/worker_group/worker.py`` and ``thread_runner.py``: an actor whose main
thread answers polls while another runs the user's function.

``poll_status`` is answered when a poll would find something, and says since when; a poll that finds
nothing is not played. A function that is a loop said by numbers and played in bulk runs in rank 0
alone; the others' threads end when it does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Ask, Event, Script, compute, now, sleep, spawn, wait_for
from raysim.raycore.tasks import TaskError
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.train.bulk import AllRanks
from raysim.raylibs.train.context import EachRank, TrainContext
from raysim.raylibs.train.gang import Gang, PreemptionInfo
from raysim.raylibs.train.loop import TrainLoop
from raysim.raylibs.train.reports import Checkpoint, WorkerStatus
from raysim.units import to_ns

UserFunction = Callable[[TrainContext], Ask]
"""Runs a user's own ``train_loop_per_worker``: answered with what it returns, or its TaskError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainFunction:
    """What every worker runs: a loop said by numbers, or a user's function."""

    loop: TrainLoop | None = None
    in_bulk: bool = True
    """Of a loop: one script plays it for all ranks."""
    user: UserFunction | None = None

    def __post_init__(self) -> None:
        assert (self.loop is None) != (self.user is None), "a loop, or a user's function"

    def run(self, context: TrainContext) -> Script:
        """In the training thread; what it returns, or a TaskError."""
        if self.user is not None:
            value = yield self.user(context)
            if not isinstance(value, TaskError):
                yield from context.flush()
            return value
        assert self.loop is not None, "a loop, or a user's function"
        if not self.in_bulk:
            return (yield from self.loop.run(EachRank(context, self.loop)))
        if context.rank == 0:
            return (yield from self.loop.run(AllRanks(context, self.loop)))
        return (yield wait_for(context.gang.finished))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What ``init_train_context`` and the backend tell a worker."""

    gang: Gang
    sync: ActorHandle
    rank: int
    local_rank: int
    local_world_size: int
    node_rank: int
    restored: Checkpoint | None
    data: ActorHandle | None
    """The manager of the trainer's datasets, if it has any."""
    run_name: str
    backend_s: float
    """Of ``init_process_group``, once all are there."""


class RayTrainWorker:
    """An actor; loading its class imports Ray Train and torch."""

    def __init__(self, process: CoreProcess, import_core_s: float | None) -> None:
        self.process = process
        self.context: TrainContext | None = None
        own_s = process.costs.train_worker_core_s
        self._import_core_s = own_s if import_core_s is None else import_core_s
        self._ended: WorkerStatus | None = None
        self._told: PreemptionInfo | None = None
        self._news = Event()

    def get_metadata(self) -> Script:
        """Its node, once it can answer."""
        if self._import_core_s:
            yield compute(self._import_core_s)
        return self.process.me.node_id

    def init_train_context(self, place: Place) -> Script:
        """The context, then the backend: all ranks wait for the last."""
        self.context = TrainContext(
            self.process, place.gang, place.sync, rank=place.rank, local_rank=place.local_rank,
            local_world_size=place.local_world_size, node_rank=place.node_rank,
            restored=place.restored, data=place.data, run_name=place.run_name,
            say=self._say,
        )  # fmt: skip
        place.gang.join(place.rank, self.process)
        if place.backend_s:
            yield sleep(to_ns(place.backend_s))

    def run_train_fn(self, function: TrainFunction) -> Script:
        """In a thread of its own."""
        assert self.context is not None, "a function before its context"
        yield spawn(_stamped(function.run(self.context)), self._end)

    def _end(self, ended: tuple[Any, int]) -> None:
        value, at_ns = ended
        error = value if isinstance(value, TaskError) else None
        assert self.context is not None, "a thread without its context"
        ready_ns = max(at_ns, self.context.gang.drained_ns + 1)
        self._ended = WorkerStatus(
            running=False, ready_ns=ready_ns, error=error, return_value=None if error else value
        )
        self._say()

    def mark_preempt(self, info: PreemptionInfo) -> None:
        """The watcher has seen a node drain."""
        assert self.context is not None, "a notice before the context"
        self._told = info
        self.context.gang.notice(info)
        self._say()

    def _say(self) -> None:
        news, self._news = self._news, Event()
        news.set()

    def poll_status(self, taken: bool, told: PreemptionInfo | None) -> Script:
        """Once there is something beyond what the caller knows.

        ``taken``: the poll before this one has taken a report; ``told``: the notice it knows of.
        """
        context = self.context
        assert context is not None, "a poll before the context"
        if taken:
            context.take()
        while True:
            at_ns = yield now()
            notice = self._told if self._told is not told else None
            if context.queue:
                report, ready_ns = context.queue[0]
                error = self._ended.error if self._ended is not None else None
                return WorkerStatus(
                    running=True, ready_ns=ready_ns, report=report, error=error, preemption=notice
                )
            if self._ended is not None:
                return self._ended
            if notice is not None:
                return WorkerStatus(running=True, ready_ns=at_ns, preemption=notice)
            yield wait_for(self._news)

    def shutdown(self) -> None:
        """Hooks of callbacks, of which there are none."""


def _stamped(script: Script) -> Script:
    value = yield from script
    return value, (yield now())
