"""The operator that runs tasks: reads, maps, writes, in tasks or in a pool of actors.

Real counterpart: ``operators/map_operator.py``, ``task_pool_map_operator.py``,
``actor_pool_map_operator.py`` and ``DataOpTask`` of ``interfaces/physical_operator.py``.

What goes out, and when, is ``outlets.py``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import Script, drop, keep, now, submit
from raysim.raycore.tasks import NodeAffinity, Payload, Ref, RemoteFunction, TaskError, TaskOptions
from raysim.raylibs.data.actor_pool import ActorPool, PoolActor
from raysim.raylibs.data.blocks import Block, Made, locations, sliced, total
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.exchange import Exchange
from raysim.raylibs.data.metrics import OpMetrics
from raysim.raylibs.data.operators import Links, Operator
from raysim.raylibs.data.outlets import AsMade, Outlet, Samples
from raysim.raylibs.data.resources import Resources
from raysim.raylibs.data.stages import MapStage
from raysim.raylibs.data.tasks import Work, body_of, own_core_s

ANYWHERE: NodeID = -1
ROUNDS_AT_ONCE = 2
"""Maps of one round while the one before is merged (``push_based_shuffle_task_scheduler.py``)."""
WORK_BYTES = 2_000
"""A task's arguments that are not blocks: its transform is put once, this is what names it."""


class DataTask:
    """A running task: its generator, and what has come of it."""

    __slots__ = (
        "actor", "began_ns", "blocks", "ended", "error", "generator", "index", "items", "made",
        "on_change", "outputs", "process",
    )  # fmt: skip

    def __init__(
        self, index: int, blocks: list[Block], made: dict[int, Made], process: CoreProcess,
        on_change: Callable[[DataTask], object],
    ) -> None:  # fmt: skip
        self.index = index
        self.blocks = blocks
        self.made = made
        self.process = process
        self.on_change = on_change
        self.items: deque[Ref] = deque()
        self.outputs = 0
        self.ended = False
        self.error: TaskError | None = None
        self.actor: PoolActor | None = None
        self.generator: Ref
        self.began_ns = 0

    def watch(self, generator: Ref) -> None:
        """It has been submitted: hear of its blocks."""
        self.generator = generator
        self.process.next_item(generator, self._arrived)

    def _arrived(self, item: Ref | TaskError | None) -> None:
        if isinstance(item, Ref):
            self.items.append(item)
        else:
            self.error, self.ended = item, True
        self.on_change(self)

    @property
    def is_ready(self) -> bool:
        """There is something to read, if only its end."""
        return bool(self.items) or self.ended

    def take(self) -> Block:
        """Its next block; the generator goes on."""
        ref = self.items.popleft()
        made = self.made[self.outputs]
        self.outputs += 1
        self.process.next_item(self.generator, self._arrived)
        return Block(made.rows, made.size_bytes, ref, split=self.outputs - 1, pieces=made.pieces)


class MapOperator:
    """Takes blocks, puts small ones together, runs a task on each bundle."""

    def __init__(
        self,
        stage: MapStage,
        name: str,
        inputs: list[Operator],
        context: DataContext,
        process: CoreProcess,
        on_change: Callable[[Any], object],
        *,
        rng: Any = None,
        storage: Any = None,
    ) -> None:
        self.stage = stage
        self.name = name
        self.links = Links(inputs)
        self.context = context
        self.process = process
        self.on_change = on_change
        self.metrics = OpMetrics(context)
        self.tasks: dict[int, DataTask] = {}
        self.materializes = stage.samples
        self.throttled = not stage.samples and not stage.bulk
        self.outlet: Outlet = AsMade(self.links, in_order=context.preserve_order)
        if stage.samples:
            self.outlet = Samples(self.links)
        step = stage.first
        self.pool = ActorPool(stage, context, lambda: on_change(None)) if step.actors else None
        self.bundles: dict[NodeID, list[Block]] = {}
        """Blocks that wait to be enough for a task; by node, if the stage gathers them so."""
        self.queue: deque[tuple[NodeID, list[Block]]] = deque()
        """Bundles that wait for an actor of the pool."""
        self.exchange = next((op for op in inputs if isinstance(op, Exchange)), None)
        self._sampled = next((op.outlet for op in inputs if isinstance(op, MapOperator)), None)
        self._options = {s: self._options_of(s) for s in ("SPREAD", "DEFAULT")}
        self._rng = rng if stage.cv_frac else None
        self._storage = storage

    def _options_of(self, strategy: Any) -> TaskOptions:
        step = self.stage.first
        held = {"CPU": step.cpus, "GPU": step.num_gpus, **step.remote_args}
        return TaskOptions(
            function=RemoteFunction(name=self.stage.name, body=body_of(self.stage)),
            resources=ResourceSet.of({k: v for k, v in held.items() if v}),
            num_returns="streaming",
            max_retries=self.context.task_max_retries,
            strategy=strategy,
            generator_backpressure_num_objects=-1
            if self.stage.cuts
            else self.context.generator_backpressure,
        )

    # input

    def can_add_input(self) -> bool:
        """As ``Operator``: the user's cap on tasks, or a free slot of an actor."""
        if self.pool is not None:
            return self.pool.free_slots > len(self.queue)
        after = self.links.after
        if after and isinstance(after[0], Exchange) and after[0].stage.round_maps:
            ahead = len(self.tasks) + after[0].open_maps
            return ahead < ROUNDS_AT_ONCE * after[0].stage.round_maps
        most = self.stage.first.concurrency
        return not isinstance(most, int) or len(self.tasks) < most

    def dispatch(self) -> Script:
        """As ``Operator``."""
        block = self.links.next_input()
        self.metrics.blocks_in += 1
        self.metrics.rows_in += block.rows
        stage, node_id = self.stage, ANYWHERE
        if stage.drops_empty and not block.rows and len(stage.steps) == 1:
            assert self.exchange is not None, "its partitions come from one"
            for ref in self.exchange.used(block.start):
                yield drop(ref)
            return
        if stage.gather_bytes:
            node_id = next(iter(locations(self.process, block)), ANYWHERE)
        bundle = self.bundles.setdefault(node_id, [])
        if stage.merges:
            if bundle and bundle[0].split != block.split:
                yield from self._start_bundle(node_id)
                bundle = self.bundles.setdefault(node_id, [])
            bundle.append(block)
            return
        bundle.append(block)
        rows, size_bytes = total(bundle)
        if stage.exact_rows:
            yield from self._start_exactly(node_id, rows - rows % stage.exact_rows)
        elif rows >= stage.min_rows_per_bundle and size_bytes >= stage.gather_bytes:
            yield from self._start_bundle(node_id)

    def all_inputs_done(self) -> Script:
        """As ``Operator``: what is left becomes the last task."""
        for node_id in list(self.bundles):
            yield from self._start_bundle(node_id)
        self.links.inputs_done = True
        self._close()

    def _close(self) -> None:
        if self.links.inputs_done and not self.tasks and not self.queue:
            self.outlet.close()

    def _start_bundle(self, node_id: NodeID) -> Script:
        self.queue.append((node_id, self.bundles.pop(node_id)))
        yield from self.start_queued()

    def _start_exactly(self, node_id: NodeID, rows: int) -> Script:
        """A task of so many rows; what is left of the last block waits for more."""
        bundle, taken = self.bundles[node_id], []
        while rows:
            block = bundle.pop(0)
            if block.rows > rows:
                block, rest = sliced(block, rows)
                bundle.insert(0, rest)
                if rest.owned and rest.ref is not None:
                    yield keep(rest.ref)  # both parts are dropped when they have been used
            taken.append(block)
            rows -= block.rows
        if not bundle:
            del self.bundles[node_id]
        if taken:
            self.queue.append((node_id, taken))
            yield from self.start_queued()

    def start_queued(self) -> Script:
        """Start what can be started of the bundles that wait."""
        while self.queue and (self.pool is None or self.pool.free_slots):
            yield from self._start(*self.queue.popleft())

    def _start(self, node_id: NodeID, blocks: list[Block]) -> Script:
        rows, size_bytes = total(blocks)
        metrics = self.metrics
        self._learn()
        made: dict[int, Made] = {}
        work = Work(
            self.stage, rows, size_bytes, self.context.target_max_block_size, self._slower(),
            tuple((b.start, b.rows) for b in blocks), made, metrics.tasks_submitted,
            self._storage, self.exchange, own_core_s(self.stage, rows, self.process.costs),
        )  # fmt: skip
        task = DataTask(metrics.tasks_submitted, blocks, made, self.process, self.on_change)
        refs = [b.ref for b in blocks if b.ref is not None]
        if self.exchange is not None:
            refs += [ref for b in blocks for ref in self.exchange.lost(b.start)]
        metrics.tasks_submitted += 1
        metrics.input_bytes_pending += size_bytes if refs else 0
        task.began_ns = yield now()
        if metrics.first_ns < 0:
            metrics.first_ns = task.began_ns
        self.tasks[task.index] = task
        if self.pool is not None:
            task.actor = self.pool.select([n for b in blocks for n in locations(self.process, b)])
            generator = yield from self.pool.submit(task.actor, work, refs)
        else:
            large = bool(refs) and size_bytes > self.context.large_args_threshold
            context = self.context
            strategy = (
                context.scheduling_strategy_large_args if large else context.scheduling_strategy
            )
            options = self._options["DEFAULT" if self.stage.samples else strategy]
            if node_id != ANYWHERE:
                options = replace(options, strategy=NodeAffinity(node_id=node_id, soft=True))
            (generator,) = yield submit(options, [Payload(WORK_BYTES, work), *refs])
        task.watch(generator)

    def _learn(self) -> None:
        """Hooks that are made of samples, which are all there before the first task."""
        if self._sampled is not None and any(s.hook_of is not None for s in self.stage.steps):
            found = self._sampled.found
            self.stage = replace(
                self.stage,
                steps=tuple(
                    s if s.hook_of is None else replace(s, hook=s.hook_of(found), hook_of=None)
                    for s in self.stage.steps
                ),
            )

    def _slower(self) -> float:
        """Lognormal of mean 1."""
        if self._rng is None:
            return 1.0
        sigma = math.sqrt(math.log1p(self.stage.cv_frac**2))
        return float(self._rng.lognormal(-sigma * sigma / 2, sigma))

    # output

    def took(self, task: DataTask, block: Block) -> None:
        """The executor has read a block of one of its tasks."""
        metrics = self.metrics
        if not self.stage.cuts:
            block = block._replace(split=0)
        metrics.blocks_out += 1
        metrics.rows_out += block.rows
        metrics.bytes_out += block.size_bytes
        self.outlet.took(task.index, block)

    def ended(self, task: DataTask, now_ns: int) -> list[Ref]:
        """A task is over; what is no longer needed of it."""
        metrics = self.metrics
        del self.tasks[task.index]
        metrics.tasks_finished += 1
        metrics.outputs_of_finished += task.outputs
        metrics.task_ns += now_ns - task.began_ns
        metrics.last_ns = now_ns
        if task.actor is not None:
            task.actor.in_flight -= 1
        gone = [task.generator]
        for block in task.blocks:
            if self.exchange is not None:
                gone += self.exchange.used(block.start)
            if block.ref is not None:
                metrics.input_bytes_pending -= block.size_bytes
        gone += self.outlet.ended(task.index, task.blocks)
        self._close()
        return gone

    # what it is

    @property
    def finished(self) -> bool:
        """As ``Operator``."""
        done = self.links.inputs_done or self.links.stopped
        return done and not self.tasks and not self.queue

    @property
    def internal(self) -> tuple[int, int]:
        """As ``Operator``."""
        waiting = (*self.bundles.values(), *(bundle for _, bundle in self.queue))
        held = [b for bundle in waiting for b in bundle if b.ref is not None]
        return len(held), total(held)[1]

    @property
    def producing(self) -> int:
        """Tasks that may hold blocks: of those sent to an actor only so many run at once."""
        running, pool = len(self.tasks), self.pool
        return running if pool is None else min(running, pool.active * pool.concurrency)

    def usage(self) -> Resources:
        """As ``Operator``."""
        each = self._each
        count = len(self.tasks) if self.pool is None else len(self.pool.actors)
        return each.times(count)

    def per_task(self) -> Resources:
        """As ``Operator``."""
        return self._each if self.pool is None else Resources()

    def least_and_most(self) -> tuple[Resources, Resources]:
        """As ``Operator``."""
        each = self._each
        least = each._replace(store=self.metrics.max_pending_output_per_task or 0.0)
        most: float = math.inf
        if self.pool is not None:
            least, most = each.times(self.pool.least), self.pool.most
        elif isinstance(self.stage.first.concurrency, int):
            most = self.stage.first.concurrency
        return least, Resources(
            each.cpu * most if each.cpu else 0.0, each.gpu * most if each.gpu else 0.0, math.inf
        )

    @property
    def _each(self) -> Resources:
        step = self.stage.first
        return Resources(cpu=step.cpus, gpu=step.num_gpus)
