"""The streaming executor: one loop in the driver that reads blocks, starts tasks and scales.

Real counterpart: ``_internal/execution/streaming_executor.py``, ``streaming_executor_state.py``.
A step waits up to 0.1 s for *all* running tasks to have something, reads what its budgets allow,
starts tasks one by one, each time of the operator that uses the store least, then looks at actors
and nodes. Steps that would find nothing are left out: the next one is that of the 0.1 s grid at
which something has happened.

Not modelled: progress bars, the issue detector.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from raysim.kernel.rng import Streams
from raysim.kernel.sampler import Sampler
from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import GetAllNodeInfo
from raysim.raycore.resources import UNIT
from raysim.raycore.scripts import (
    TIMED_OUT,
    Ask,
    Event,
    Script,
    ask_gcs,
    drop,
    now,
    spawn,
    spend,
    wait_for,
)
from raysim.raycore.tasks import TaskError
from raysim.raylibs.data.autoscaling import ClusterAutoscaler
from raysim.raylibs.data.backpressure import Backpressure
from raysim.raylibs.data.blocks import Block
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.map_operator import DataTask, MapOperator
from raysim.raylibs.data.operators import Operator
from raysim.raylibs.data.over_time import look_at
from raysim.raylibs.data.plan import Plan, plan_of
from raysim.raylibs.data.resources import NONE, ResourceManager, Resources
from raysim.raylibs.data.specs import Dataset
from raysim.raylibs.data.topology import build
from raysim.units import to_ns


def available_cpus() -> Script:
    """CPUs of the cluster, for read parallelism."""
    rows = yield ask_gcs(GetAllNodeInfo())
    return sum(row.resources.get("CPU", 0) for row in rows if row.state == "ALIVE") / UNIT


def execution_of(
    process: CoreProcess,
    dataset: Dataset,
    context: DataContext,
    streams: Streams,
    *,
    excluded: Resources = NONE,
    storage: Any = None,
    label: str = "data",
    has_consumer: bool = True,
) -> Script:
    """Plan a dataset for the cluster as it is, and start running it; its ``StreamingExecutor``.

    ``has_consumer``: somebody takes blocks when they want to, and holds the output back meanwhile.
    """
    cpus = (yield from available_cpus()) - excluded.cpu
    context = replace(context, preserve_order=context.preserve_order or dataset.ordered)
    plan = plan_of(dataset.anew(), context, cpus)
    executor = StreamingExecutor(
        process, plan, context, streams, excluded=excluded, storage=storage, label=label
    )
    executor.manager.has_consumer = has_consumer
    yield spawn(executor.run())
    return executor


class StreamingExecutor:
    """Runs a plan in the process it is given; consumers take blocks from ``output``.

    ``excluded`` is what others have reserved: trainers' CPUs and GPUs.
    """

    def __init__(
        self,
        process: CoreProcess,
        plan: Plan,
        context: DataContext,
        streams: Streams,
        *,
        excluded: Resources = NONE,
        storage: Any = None,
        label: str = "data",
    ) -> None:
        self.process = process
        self.context = context
        self.excluded = excluded
        self.topology = build(plan, context, process, self._on_change, streams, storage, label)
        self.manager = ResourceManager(self.topology, context)
        self.backpressure = Backpressure(self.manager)
        self.autoscaler = ClusterAutoscaler(self.topology, self.manager, context)
        self.output = self.topology[-1]
        self.waiting_consumers = 0
        self._errored_blocks = 0
        self.ended = Event()
        """Set when all blocks are out (value None) or a task has failed (its error)."""
        self.has_output = Event()
        """Set when a block is put out, or at the end; consumers replace it."""
        self.began_ns = self.ended_ns = 0
        self.steps = 0
        self.driver_ns = 0
        """What the loop's own code took."""
        self.looks = Sampler()
        """At every operator, as steps end."""
        self._woken = Event()
        self._stopped = False
        self._limits_ns = -1
        self._told: Resources | None = None

    # what others do to it

    def _on_change(self, task: DataTask | None) -> None:
        del task
        self._woken.set()

    def take(self, split: int | None = None) -> Block | None:
        """A block of the output for a consumer; None: none is there now."""
        links = self.output.links
        if split is None:
            block = links.take() if links.out else None
        else:
            block = next((b for b in links.out if b.split == split), None)
            if block is not None:
                links.out.remove(block)
                links.out_bytes -= block.size_bytes
        if block is not None:
            self._woken.set()
        return block

    def consumers_hold(self, change_bytes: int) -> None:
        """Iterators hold so many more bytes of blocks, or fewer."""
        self.manager.consumer_bytes += change_bytes
        if change_bytes < 0:
            self._woken.set()

    def wake(self) -> None:
        """Something outside has changed."""
        self._woken.set()

    def stop(self) -> None:
        """Nobody wants more; what waits to be taken is dropped."""
        self._stopped = True
        self._woken.set()
        if self.ended.is_set:
            self._forget_outputs()

    def _forget_outputs(self) -> None:
        for op in self.topology:
            for _ in range(len(op.links.out)):
                block = op.links.take()
                if block.ref is not None and block.owned:
                    self.process.remove_local_reference(block.ref.object_id)

    @property
    def spins(self) -> bool:
        """No task to wait for: the loop goes round without a pause, and keeps Python's lock."""
        return not self.ended.is_set and not any(op.tasks for op in self.topology)

    # the loop

    def run(self) -> Script:
        """Until everything is out; returns None or the TaskError that ended it."""
        self.began_ns = yield now()
        if any(op.throttled for op in self.topology):  # else it is all there already
            yield self._spend(self.process.costs.data_run_ns)
        yield from self._refresh_limits()
        for op in self._maps:
            if op.pool is not None:
                yield from op.pool.scale_up(op.pool.least)
        error: TaskError | None = None
        while error is None and not self._stopped:
            error = yield from self._step()
            if all(op.finished for op in self.topology):
                break
            if error is None and not self._stopped:
                yield from self._wait()
        self.ended_ns = yield now()
        yield from self._shut_down()
        self.ended.set(error)
        self._tell_consumers()
        return error

    def _step(self) -> Script:
        costs = self.process.costs
        self.steps += 1
        self._woken = Event()
        running = sum(len(op.tasks) for op in self.topology)
        if self.context.streaming:
            yield self._spend(costs.data_step_ns + costs.data_active_task_ns * running)
        yield from self._refresh_limits()
        self.manager.update()
        error = yield from self._read_tasks()
        if error is not None:
            return error
        for op in self._maps:
            if op.pool is not None and op.pool.error is not None:
                return op.pool.error
            yield from op.start_queued()
        self.manager.update()
        while True:
            idle = not self.output.links.out
            chosen = self.backpressure.select(self.topology, consumer_idle=idle)
            if chosen is None:
                break
            started = chosen.metrics.tasks_submitted
            yield from chosen.dispatch()
            if chosen.metrics.tasks_submitted > started:
                yield self._spend(costs.data_task_ns)
            self.manager.update()
        self._look()
        yield from self._scale()
        error = yield from self._pass_on_ends()
        if self.output.links.out:
            self._tell_consumers()
        return error

    def _look(self) -> None:
        at_ns = self.process.now_ns
        if self.looks.due(at_ns):
            self.looks.add(at_ns, *(v for op in self.topology for v in look_at(op, self)))

    def _spend(self, work_ns: int) -> Ask:
        self.driver_ns += work_ns
        return spend(work_ns)

    @property
    def _maps(self) -> list[MapOperator]:
        return [op for op in self.topology if isinstance(op, MapOperator)]

    def _read_tasks(self) -> Script:
        """Take blocks of tasks in the order of their numbers, as far as budgets allow."""
        at_ns = yield now()
        for op in self.topology:
            if not op.tasks:
                continue
            left = self.backpressure.bytes_to_read(op, consumers_wait=self.waiting_consumers > 0)
            for task in [t for _, t in sorted(op.tasks.items()) if t.is_ready]:
                while task.items and (left is None or left > 0):
                    block = task.take()
                    op.took(task, block)  # type: ignore[attr-defined]
                    yield self._spend(self.process.costs.data_block_ns)
                    if left is not None:
                        left -= block.size_bytes
                if task.ended and not task.items and (left is None or left > 0):
                    yield drop(*op.ended(task, at_ns))  # type: ignore[attr-defined]
                    if task.error is not None:
                        self._errored_blocks += 1
                        if 0 <= self.context.max_errored_blocks < self._errored_blocks:
                            return task.error
        return None

    def _scale(self) -> Script:
        for op in self._maps:
            pool = op.pool
            if pool is None:
                continue
            done = op.finished or (op.links.inputs_done and not op.queue)
            change = pool.change(
                inputs_done=done, received=op.metrics.blocks_in,
                budget=self.manager.budgets.get(op.name),
            )  # fmt: skip
            if change > 0:
                yield from pool.scale_up(change)
            elif change < 0:
                yield from pool.scale_down(-change)
        yield from self.autoscaler.look()

    def _pass_on_ends(self) -> Script:
        """Tell operators that no more input comes, and those before a limit that it is enough."""
        for op in self.topology:
            links = op.links
            if links.inputs_done or not links.inputs:
                continue
            if all(before.finished and not before.links.out for before in links.inputs):
                error = yield from op.all_inputs_done()
                if isinstance(error, TaskError):
                    return error
                self._woken.set()
        for op in reversed(self.topology):
            after = op.links.after
            if after and all(a.finished for a in after) and not op.links.stopped:
                op.links.stopped = True
            if op.links.stopped or op.finished:
                unused = [b.ref for b in op.links.clear() if b.ref is not None and b.owned]
                yield drop(*unused)
        return None

    # waiting

    def _wait(self) -> Script:
        """Until the step that would find something.

        ``ray.wait`` of all tasks: back at once when all have something, else after 0.1 s; those
        that come back with nothing new are left out.
        """
        began_ns = yield now()
        grid_ns = to_ns(self.context.wait_for_task_completion_s)
        if any(self._may_read(op) for op in self.topology):
            self._woken.set()
        answer = yield wait_for(self._woken, self.autoscaler.next_look_ns(began_ns))
        late_ns = (yield now()) - began_ns
        due_ns = began_ns + max(1, math.ceil(late_ns / grid_ns)) * grid_ns
        while answer is not TIMED_OUT and not self._all_ready():
            self._woken = Event()
            at_ns = yield now()
            if at_ns >= due_ns:
                return
            answer = yield wait_for(self._woken, due_ns - at_ns)

    def _may_read(self, op: Operator) -> bool:
        """Its tasks have something that the step has made room for only after it looked."""
        if not any(t.is_ready for t in op.tasks.values()):
            return False
        left = self.backpressure.bytes_to_read(op, consumers_wait=self.waiting_consumers > 0)
        return left is None or left > 0

    def _all_ready(self) -> bool:
        """Every task has something to read."""
        return all(t.is_ready for op in self.topology for t in op.tasks.values())

    def _tell_consumers(self) -> None:
        told, self.has_output = self.has_output, Event()
        told.set()

    def _refresh_limits(self) -> Script:
        """What the cluster has, at most once a second: as the last time's question was answered."""
        at_ns = yield now()
        every_ns = to_ns(self.context.global_limits_update_interval_s)
        if self._limits_ns >= 0 and at_ns - self._limits_ns < every_ns:
            return
        first, self._limits_ns = self._limits_ns < 0, at_ns
        if first and not self.context.coordinated_limits:
            self._heard((yield ask_gcs(GetAllNodeInfo())))
        if self._told is not None:
            self.manager.limits = self._told
        self.process.call_gcs(GetAllNodeInfo(), self._heard)

    def _heard(self, rows: Any) -> None:
        """What is used from the next time on, which has to be a step."""
        if isinstance(rows, TaskError) or not isinstance(rows, tuple):
            return
        alive = [row.resources for row in rows if row.state == "ALIVE"]
        cpu, gpu, store = (
            sum(r.get(name, 0) for r in alive) / UNIT
            for name in ("CPU", "GPU", "object_store_memory")
        )
        context = self.context
        share = context.object_store_limit_frac
        if not context.op_resource_reservation_enabled:
            share = context.object_store_limit_frac_unreserved
        most = Resources(cpu, gpu, store * share).least(Resources(*context.resource_limits))
        self._told = most.minus(Resources(*context.exclude_resources)).minus(self.excluded)
        if self._told != self.manager.limits:
            every_ns = to_ns(self.context.global_limits_update_interval_s)
            due_ns = self._limits_ns + every_ns - self.process.now_ns
            self.process.after(max(0, due_ns), lambda _: self.wake())

    def _shut_down(self) -> Script:
        """Kill the pools, forget what still runs, and what nobody will take."""
        if self._stopped:
            self._forget_outputs()
        for op in self._maps:
            for task in list(op.tasks.values()):
                unread = list(task.items)
                yield drop(*unread, *op.ended(task, self.ended_ns))
            if op.pool is not None:
                for actor in op.pool.actors:
                    yield actor.handle.kill()
                op.pool.actors.clear()
