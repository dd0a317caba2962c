"""A pool of actors that run a map's tasks.

Real counterpart: ``_ActorPool`` of ``operators/actor_pool_map_operator.py`` and
``_internal/actor_autoscaler/default_actor_autoscaler.py``. A task goes to an actor on a node that
holds its blocks if that one has room, else to the least busy. Actors restart for ever and tasks
are tried again on any.

Not modelled: the cool-off after scaling up, actors replaced when an init fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from raysim.raycore.ids import NodeID
from raysim.raycore.scripts import Script, here
from raysim.raycore.tasks import ActorOptions, Ref, TaskError, TaskOptions
from raysim.raylibs.actors import ActorClass, ActorHandle, method_of
from raysim.raylibs.data.defaults import DataContext
from raysim.raylibs.data.resources import Resources
from raysim.raylibs.data.stages import MapStage
from raysim.raylibs.data.tasks import MapWorker, Work


class PoolActor:
    """One actor, as the pool knows it."""

    __slots__ = ("handle", "in_flight", "node_id")

    def __init__(self, handle: ActorHandle) -> None:
        self.handle = handle
        self.in_flight = 0
        self.node_id: NodeID | None = None
        """None: its constructor has not returned."""


class ActorPool:
    """The actors of one operator."""

    def __init__(
        self, stage: MapStage, context: DataContext, on_change: Callable[[], object]
    ) -> None:
        step = stage.first
        size = step.concurrency
        self.least, self.most = size if isinstance(size, tuple) else (size or 1, size or math.inf)
        self.stage = stage
        self.context = context
        self.concurrency = step.max_concurrency
        self.in_flight_most = context.actor_tasks_in_flight_factor * step.max_concurrency
        self.each = Resources(cpu=step.cpus, gpu=step.num_gpus)
        self.actors: list[PoolActor] = []
        self.on_change = on_change
        self.peak = 0
        self.error: TaskError | None = None
        held = {"CPU": step.cpus, "GPU": step.num_gpus, **step.remote_args}
        self._class = ActorClass(
            cls=MapWorker,
            resources={name: amount for name, amount in held.items() if amount},
            actor=ActorOptions(
                max_restarts=-1, max_task_retries=-1, max_concurrency=step.max_concurrency
            ),
        )
        self._submit: TaskOptions = replace(
            method_of("MapWorker", "submit", num_returns="streaming", max_retries=-1),
            generator_backpressure_num_objects=context.generator_backpressure,
            name=stage.name,
        )

    # who there is

    @property
    def ready(self) -> list[PoolActor]:
        """Those whose constructor has returned."""
        return [a for a in self.actors if a.node_id is not None]

    @property
    def pending(self) -> int:
        """Those that are still being made."""
        return sum(a.node_id is None for a in self.actors)

    @property
    def active(self) -> int:
        """Those with work."""
        return sum(a.in_flight > 0 for a in self.actors)

    @property
    def free_slots(self) -> int:
        """Tasks that could be sent now."""
        return sum(self.in_flight_most - a.in_flight for a in self.ready)

    def scale_up(self, count: int) -> Script:
        """Make more; each is used once its model is loaded."""
        process = yield here()
        for _ in range(count):
            handle = yield from self._class.remote(self.stage)
            actor = PoolActor(handle)
            self.actors.append(actor)
            refs = yield handle.call("start")
            process.get(refs, _Started(self, actor, refs, process))
        self.peak = max(self.peak, len(self.actors))

    def scale_down(self, count: int) -> Script:
        """Kill idle ones, the newest first."""
        idle = [a for a in reversed(self.actors) if not a.in_flight and a.node_id is not None]
        for actor in idle[:count]:
            self.actors.remove(actor)
            yield actor.handle.kill()

    def select(self, nodes: Sequence[NodeID]) -> PoolActor:
        """Who gets a task whose blocks are on these nodes."""
        free = [a for a in self.ready if a.in_flight < self.in_flight_most]
        near = [a for a in free if a.node_id in nodes]
        return min(near or free, key=lambda a: a.in_flight)

    def submit(self, actor: PoolActor, work: Work, refs: Sequence[Ref]) -> Script:
        """Send a task; its generator."""
        actor.in_flight += 1
        sent = yield actor.handle.call("submit", work, *refs, options=self._submit)
        return sent[0]

    # how many there should be

    def change(self, *, inputs_done: bool, received: int, budget: Resources | None) -> int:
        """How many more (or fewer) actors now."""
        size = len(self.actors)
        if inputs_done:
            return -1
        if size < self.least:
            return self.least - size
        if not received:
            return 0
        running = len(self.ready)
        context = self.context
        in_flight = sum(a.in_flight for a in self.actors)
        util = in_flight / (self.concurrency * running) if running else math.inf
        if util >= context.actor_pool_util_upscaling_threshold:
            room = min(self.most - size, self._within(budget))
            if room < 1:
                return 0
            if math.isinf(util):
                return 1
            more = math.ceil(size * (util / context.actor_pool_util_upscaling_threshold - 1))
            return int(min(max(1, more), room))
        if util <= context.actor_pool_util_downscaling_threshold:
            return 0 if self.pending or size <= self.least else -1
        return 0

    def _within(self, budget: Resources | None) -> float:
        """How many more the budget has room for."""
        room = math.inf
        if budget is not None and self.each.cpu:
            room = min(room, budget.cpu // self.each.cpu)
        if budget is not None and self.each.gpu:
            room = min(room, budget.gpu // self.each.gpu)
        return room


class _Started:
    """Waits for a constructor."""

    __slots__ = ("actor", "pool", "process", "refs")

    def __init__(
        self, pool: ActorPool, actor: PoolActor, refs: Sequence[Ref], process: Any
    ) -> None:
        self.pool = pool
        self.actor = actor
        self.refs = refs
        self.process = process

    def __call__(self, values: Any) -> None:
        value = values if isinstance(values, TaskError) else values[0]
        if isinstance(value, TaskError):
            self.pool.error = value
        else:
            self.actor.node_id = value.data
        for ref in self.refs:
            self.process.remove_local_reference(ref.object_id)
        self.pool.on_change()
