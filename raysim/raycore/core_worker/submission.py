"""From the program's thread to the io thread: specs, returns, exported functions, turns.

Real counterpart: ``CoreWorker::SubmitTask``, ``CreateActor`` and ``SubmitActorTask``, and
``function_manager.py``. The program may be ahead of the clock; its calls wait in line and the io
thread takes each when the program is there and it is free.

Not modelled: that exporting a function for the first time holds up the program; its tasks wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from raysim.kernel.clock import Handle
from raysim.kernel.component import Cores
from raysim.raycore.core_worker.task_manager import PendingTask
from raysim.raycore.ids import OBJECT_INDEX_BITS, ActorID, actor_handle
from raysim.raycore.protocol import InternalKVPut
from raysim.raycore.tasks import Arg, Ref, RemoteFunction, TaskError, TaskOptions, TaskSpec

if TYPE_CHECKING:
    from raysim.raycore.core_worker.worker import CoreWorker


class _Turn:
    """What the program does after calls that are still in line."""

    __slots__ = ("arg", "fn", "work_ns")

    def __init__(self, fn: Callable[[Any], object], arg: Any, work_ns: int) -> None:
        self.fn = fn
        self.arg = arg
        self.work_ns = work_ns


class Submission:
    """Of one process."""

    def __init__(self, core: CoreWorker) -> None:
        self.core = core
        self.me = core.me
        self.tasks = core.tasks
        self.references = core.references
        self._ids = core.env.ids
        self._clock = core.sim.clock
        self._cost_ns = core.costs.io_submit_ns
        self._crowding_ns = 2 * core.costs.submit_task_ns
        self._worker_id = core.me.worker_id
        self._line: deque[tuple[int, PendingTask | _Turn]] = deque()
        """When the program is there, and what it submits."""
        self._timer: Handle | None = None
        """Of the first in line; None while the io thread has it."""
        self._crowd = core.env.submitting.setdefault(core.me.node_id, {})
        self._turn = 1
        """Of the first in line, how many the program has made in one turn."""
        self._behind_ns = 0
        """What others on this host have cost the program since its line was empty."""
        self.exported: dict[RemoteFunction, list[PendingTask] | None] = {}
        """None: the GCS has it; else what waits for that."""
        self._pickled: set[RemoteFunction] = set()

    # Specs

    def task(
        self, options: TaskOptions, args: Sequence[Arg], lead_ns: int, parent: TaskSpec | None
    ) -> list[Ref]:
        """A normal task."""
        core = self.core
        if parent is None:
            job_id = core.job_id
            spec = TaskSpec(self._ids.task(job_id), options, tuple(args), self.me, job_id=job_id)
        else:
            spec = TaskSpec(
                self._ids.task(core.job_id), options, tuple(args), self.me, job_id=core.job_id,
                parent=parent.task_id, depth=parent.depth + 1,
                root_detached_actor_id=self._root(parent),
            )  # fmt: skip
        task = self.tasks.add(spec, options.max_retries)
        self._in_line(lead_ns, task)
        return self._returns(task, options.num_returns)

    def _root(self, parent: TaskSpec | None) -> ActorID:
        """The detached actor to which this process owes its existence; then so do its tasks."""
        actor = self.core.executor.actor
        if actor is not None:
            return actor.root_detached_actor_id
        return parent.root_detached_actor_id if parent is not None else 0

    def actor(
        self,
        options: TaskOptions,
        args: Sequence[Arg],
        then: Callable[[ActorID | TaskError], object],
        parent: TaskSpec | None,
    ) -> PendingTask:
        """An actor's creation; ``begin_actor`` follows when the program is there."""
        core = self.core
        actor_id = core.env.ids.actor(core.job_id)
        assert options.actor is not None, f"{options.function.name}: no ActorOptions"
        root = self._root(parent)
        spec = TaskSpec(
            self._ids.task(actor_id), options, tuple(args), self.me, kind="ACTOR_CREATION_TASK",
            job_id=core.job_id, actor_id=actor_id, parent=parent.task_id if parent else 0,
            depth=parent.depth + 1 if parent else 1,
            root_detached_actor_id=actor_id if options.actor.detached else root,
        )  # fmt: skip
        task = self.tasks.add(spec, 0)
        task.via = then
        core.actors.of(actor_id).creation = task
        handle = self.references.own(actor_handle(actor_id), 1, None)
        if options.actor.detached:  # lives until it is killed, whoever has handles
            handle.share().holds += 1
            self.references.owned -= 1
        return task

    def begin_actor(self, task: PendingTask) -> None:
        """Export the class if need be, then register the actor."""
        if self.export(task):
            options = task.spec.options.actor
            namespace = options.namespace if options is not None else ""
            self.core.actors.create(task, task.via, namespace or self.core.namespace)

    def actor_task(
        self,
        actor_id: ActorID,
        options: TaskOptions,
        args: Sequence[Arg],
        lead_ns: int,
        parent: TaskSpec | None,
    ) -> list[Ref] | TaskError:
        """A call of a method."""
        core = self.core
        actor = core.actors.of(actor_id)
        limit = options.actor.max_pending_calls if options.actor is not None else -1
        if 0 <= limit <= actor.pending:
            return TaskError("PENDING_CALLS_LIMIT_EXCEEDED", f"{actor.pending} calls are pending")
        actor.pending += 1
        handle = self.references.table.get(actor_handle(actor_id))
        if handle is not None:
            handle.submitted += 1
        spec = TaskSpec(
            self._ids.task(actor_id), options, tuple(args), self.me, kind="ACTOR_TASK",
            job_id=core.job_id, actor_id=actor_id, parent=parent.task_id if parent else 0,
            depth=parent.depth + 1 if parent else 1,
        )  # fmt: skip
        task = self.tasks.add(spec, options.max_retries)
        self._in_line(lead_ns, task)
        return self._returns(task, options.num_returns)

    def _returns(self, task: PendingTask, num_returns: int | Literal["streaming"]) -> list[Ref]:
        own, me = self.references.own, self.me
        first = (task.spec.task_id << OBJECT_INDEX_BITS) + 1
        if num_returns == 1:
            task.record = own(first, 1, task)
            return [Ref(first, me)]
        if num_returns == "streaming":
            own(first, 1, task)
            self.core.streams.add(task)
            return [Ref(first, me)]
        refs = []
        for object_id in range(first, first + num_returns):
            own(object_id, 1, task)
            refs.append(Ref(object_id, me))
        return refs

    # The io thread's turns

    def _in_line(self, lead_ns: int, task: PendingTask) -> None:
        """Have the io thread take the task when the program's thread is there."""
        line = self._line
        lead_ns += self.core.lead_ns
        t_ns = self._clock.now + lead_ns
        if not line:
            line.append((t_ns, task))
            if self.core.cores is not None:
                self._behind_ns = self._lost_to_threads(self.core.cores, t_ns)
                lead_ns += self._behind_ns
            self._timer = self._clock.call_later(
                lead_ns + self._cost_ns, self._due, self.core.epoch
            )
        elif t_ns >= line[-1][0]:
            line.append((t_ns, task))
        else:  # another program of this process is further ahead
            later = []
            in_service = self._timer is None
            while len(line) > in_service and line[-1][0] > t_ns:
                later.append(line.pop())
            if not line and self._timer is not None:
                self.core.sim.cancel(self._timer)
                self._timer = self._clock.call_later(
                    lead_ns + self._cost_ns, self._due, self.core.epoch
                )
            line.append((t_ns, task))
            line.extend(reversed(later))

    def after_calls(self, lead_ns: int, fn: Callable[[Any], object], arg: Any) -> bool:
        """Do ``fn(arg)`` when the program is there, behind its calls; False: none is in line."""
        line = self._line
        if not line:
            return False
        t_ns = self.core.now_ns + lead_ns
        line.append((t_ns, _Turn(fn, arg, max(0, t_ns - line[-1][0]))))
        return True

    def _due(self, epoch: int) -> None:
        """The io thread has taken the first in line, unless messages came in between."""
        core = self.core
        if epoch != core.epoch:
            return
        self._timer = None
        now_ns = self._clock.now
        cost_ns = self._cost_ns
        if core.cores is not None:
            self._work(core.cores, now_ns)
            cost_ns *= self._turn
        if core.busy_until > now_ns - cost_ns:
            core.busy_until += cost_ns
            if core.busy_until > now_ns:
                self._clock.call_later(core.busy_until - now_ns, self._take, epoch)
                return
        else:
            core.busy_until = now_ns
        self._take(epoch)

    def _take(self, epoch: int) -> None:
        core = self.core
        if epoch != core.epoch:
            return
        line = self._line
        taken = [line.popleft()[1] for _ in range(self._turn)]
        self._turn = 1
        if not line:
            self._behind_ns = 0
        else:
            now_ns = self._clock.now
            crowd = self._crowd
            crowd[self._worker_id] = now_ns + self._crowding_ns
            if core.cores is not None:
                self._turn = self._in_a_turn(core.cores, now_ns)
                self._behind_ns += self._lost_to_threads(core.cores, now_ns)
            elif len(crowd) > 1:
                self._behind_ns += self._lost_to_others(now_ns)
            wait_ns = self._cost_ns
            ahead_ns = line[self._turn - 1][0] + self._behind_ns - now_ns
            if ahead_ns > 0:
                wait_ns += ahead_ns
            self._timer = self._clock.call_later(wait_ns, self._due, epoch)
        for task in taken:
            if isinstance(task, _Turn):
                task.fn(task.arg)
            elif task.state == "args":
                self.submit(task)

    def _work(self, cores: Cores, now_ns: int) -> None:
        """The io thread's work on those that come next, where it competes with other threads."""
        task = self._line[0][1]
        if isinstance(task, _Turn):
            return
        work_ns = self._cost_ns
        if task.spec.kind == "NORMAL_TASK":
            work_ns += self.core.costs.io_task_ns
        cores.takes(self.core, now_ns, self._turn * work_ns)

    def _in_a_turn(self, cores: Cores, now_ns: int) -> int:
        """How many of those in line the program makes before it must leave its core to others."""
        left_ns = cores.slice_ns(self.core.executor, now_ns)
        line, count = self._line, 0
        kind = "" if isinstance(line[0][1], _Turn) else line[0][1].spec.kind
        while left_ns > 0 and count < len(line):
            task = line[count][1]
            if isinstance(task, _Turn) or task.spec.kind != kind:
                break
            left_ns -= self._submit_ns(task)
            count += 1
        return max(1, count)

    def _submit_ns(self, task: PendingTask | _Turn) -> int:
        """What the program works for it."""
        if isinstance(task, _Turn):
            return task.work_ns
        costs = self.core.costs
        is_task = task.spec.kind == "NORMAL_TASK"
        return costs.submit_task_ns if is_task else costs.submit_actor_task_ns

    def _lost_to_threads(self, cores: Cores, now_ns: int) -> int:
        """What the program takes longer for those that come next because there are few cores."""
        work_ns = self._turn * self._submit_ns(self._line[0][1])
        return cores.takes(self.core.executor, now_ns, work_ns) - work_ns

    def _lost_to_others(self, now_ns: int) -> int:
        """What a call takes longer because other programs of this host submit too."""
        crowd = self._crowd
        for worker_id in [w for w, until_ns in crowd.items() if until_ns < now_ns]:
            del crowd[worker_id]
        costs = self.core.costs
        return int((len(crowd) - 1) * costs.submitters_frac * costs.submit_task_ns)

    # On its way

    def submit(self, task: PendingTask) -> None:
        """Export its function if need be, resolve its arguments, queue it."""
        spec = task.spec
        if spec.kind == "ACTOR_TASK":  # methods come with their class
            self.core.actors.submit(task)
        elif self.exported.get(spec.options.function, self) is not None and not self.export(task):
            return
        elif not spec.args or self.tasks.resolve(task):
            self.core.leases.submit(task)

    def resolved(self, task: PendingTask) -> None:
        """Its arguments exist at last."""
        kind = task.spec.kind
        if kind == "ACTOR_TASK":
            self.core.actors.resolved(task)
        elif kind == "NORMAL_TASK":
            self.core.leases.submit(task)
        else:
            self.core.actors.create_resolved(task)

    def pickle_ns(self, function: RemoteFunction) -> int:
        """What the program takes to make a function ready for the GCS: once."""
        if function in self._pickled:
            return 0
        self._pickled.add(function)
        return self.core.costs.export_function_ns

    def export(self, task: PendingTask) -> bool:
        """Whether the GCS has its function; if not, the task goes on when it has."""
        function = task.spec.options.function
        if function not in self.exported:
            self.exported[function] = [task]
            self.core.gcs.call(
                InternalKVPut(
                    "fun", f"{task.spec.job_id}:{function.name}", function.body,
                    function.pickled_bytes, overwrite=False,
                ),
                _Exported(self, function).answered,
            )  # fmt: skip
            return False
        waiting = self.exported[function]
        if waiting is not None:
            waiting.append(task)
            return False
        return True

    def has_exported(self, function: RemoteFunction) -> None:
        """The GCS has the function."""
        waiting, self.exported[function] = self.exported[function], None
        for task in waiting or ():
            if task.state == "done":
                continue
            if task.spec.kind == "ACTOR_CREATION_TASK":
                self.begin_actor(task)
            else:
                self.submit(task)


class _Exported:
    """Waits for the GCS to have a function."""

    __slots__ = ("function", "submission")

    def __init__(self, submission: Submission, function: RemoteFunction) -> None:
        self.submission = submission
        self.function = function

    def answered(self, _answer: object) -> None:
        """It has."""
        self.submission.has_exported(self.function)
