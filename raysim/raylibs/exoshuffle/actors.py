"""Who sorts: map tasks, one merge controller and its mergers per node, last merges.

Real counterpart: ``cloudsort/main.py`` of Exoshuffle-CloudSort: ``mapper``, ``MergeController``,
``Merger``, ``final_merge``. A map puts one block per node and waits until the node's controller
has taken it; the controller has none but busy mergers when the node cannot keep up, and then maps
wait. Merged runs are ordinary objects, which the raylet spills; last merges read them back.

Where a played node stands for several (``Place.stands_for``), a block is their blocks: the calls
and puts that are left out still cost their callers' threads.

Not modelled: blocks that a merger has received stay in the store until they are merged; here they
are on its heap. A merged run is a few objects, not one per reduce, and a last merge reads its
share of them in bulk.
"""

from __future__ import annotations

import math
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.running import RunningTask
from raysim.raycore.scripts import (
    WAITS,
    Ask,
    Driver,
    Script,
    compute,
    drop,
    get,
    put,
    script,
    spend,
    submit,
    wait,
)
from raysim.raycore.tasks import (
    NodeAffinity,
    Payload,
    Ref,
    RemoteFunction,
    TaskError,
    TaskOptions,
)
from raysim.raylibs.actors import ActorClass, ActorHandle, Sized
from raysim.raylibs.data.storage import Bucket
from raysim.raylibs.exoshuffle.spec import Place

RUN_OBJECTS = 8
"""A merged run's objects: each holds the parts of so many of the node's last merges, in order."""
TASK_BYTES = 2_000
"""A task's pickled configuration and handles."""
SHORTEST = 0.2
"""Of the usual work, however it varies."""
BLOCK_BYTES = 300
"""A pickled reference in a list."""


def varied(place: Place, draws: Any) -> float:
    """How much longer than the usual one a task works."""
    return max(float(draws.normal(1.0, place.costs.variation)), SHORTEST)


class Merger:
    """Holds blocks, and merges them into a run."""

    def __init__(self, _process: CoreProcess, place: Place) -> None:
        self.place = place
        self._bytes = 0

    def add_block(self, size_bytes: int, _block: object) -> None:
        """One more; it has been fetched to this node."""
        self._bytes += size_bytes

    def take(self) -> int:
        """Bytes of all blocks, which leave."""
        size_bytes, self._bytes = self._bytes, 0
        return size_bytes


def _merge(running: RunningTask) -> Script:
    """``Merger.merge``: its objects, and the bytes merged."""
    merger: Merger = running.state
    place = merger.place
    size_bytes = merger.take()
    (more,) = running.args[0].data.args
    yield compute(place.costs.merge_core_s_per_byte * size_bytes * more)
    share = size_bytes // RUN_OBJECTS
    return [*(Payload(share) for _ in range(RUN_OBJECTS)), Payload(8, size_bytes)]


MERGE = TaskOptions(
    function=RemoteFunction(name="Merger.merge", body=script(_merge), pickled_bytes=0),
    num_returns=RUN_OBJECTS + 1,
)


class MergeController:
    """Hands a node's blocks to its mergers, then runs its last merges."""

    def __init__(
        self, process: CoreProcess, place: Place, storage: Bucket | None, draws: Any
    ) -> None:
        self._process = process
        self._place = place
        self._storage = storage
        self._draws = draws
        self._runs: list[list[Ref]] = []
        self._merging: dict[Ref, ActorHandle] = {}
        self._blocks = self._merged_bytes = 0
        here = NodeAffinity(node_id=process.me.node_id)
        self._here = here
        self._reduce = TaskOptions(
            function=RemoteFunction(name="final_merge", body=script(_final_merge)), strategy=here
        )
        self._idle: list[ActorHandle] = []
        self._current: ActorHandle

    def start(self) -> Script:
        """Its mergers."""
        merger = ActorClass(cls=Merger, strategy=self._here)
        for _ in range(self._place.mergers):
            self._idle.append((yield from merger.remote(self._place)))
        self._current = self._idle.pop()

    def add_block(self, size_bytes: int, block: Ref) -> Script:
        """Passed on to the merger whose turn it is; waits while all are merging."""
        more = self._place.stands_for - 1
        (taken,) = yield self._current.call("add_block", size_bytes, block)
        yield drop(taken)
        yield spend(round(more * self._process.costs.submit_actor_task_ns))
        self._blocks += 1
        if self._blocks >= self._place.merge_blocks:
            yield from self._close()

    def _close(self) -> Script:
        """The current merger merges; another takes its place."""
        more = varied(self._place, self._draws)
        *run, total = yield self._current.call("merge", more, options=MERGE)
        self._runs.append(run)
        self._merging[total] = self._current
        self._blocks = 0
        if not self._idle:
            ready = yield wait(list(self._merging))
            for ref, done in zip(list(self._merging), ready, strict=True):
                if done:
                    yield from self._merged(ref)
        self._current = self._idle.pop()

    def _merged(self, ref: Ref) -> Script:
        (size,) = yield get([ref])
        yield drop(ref)
        self._merged_bytes += size.data
        self._idle.append(self._merging.pop(ref))

    def reduce(self) -> Script:
        """All last merges of the node; bytes merged on the way."""
        if self._blocks:
            yield from self._close()
        for ref in list(self._merging):
            yield from self._merged(ref)
        place, running = self._place, list[Ref]()
        each = math.ceil(place.reduces / RUN_OBJECTS)
        for number in range(place.reduces):
            if len(running) >= place.reduce_slots:
                running = yield from _one_less(running)
            objects = [run[number // each] for run in self._runs]
            running += yield submit(self._reduce, [self._part(objects)])
            if number % each == each - 1 or number == place.reduces - 1:
                yield drop(*objects)
        values = yield get(running)
        yield drop(*running)
        return values if isinstance(values, TaskError) else self._merged_bytes

    def _part(self, objects: list[Ref]) -> Payload:
        """What a last merge is to do: share of its bytes on disk, bytes, storage."""
        on_disk = sum(self._process.is_spilled(ref) for ref in objects) / max(len(objects), 1)
        more = varied(self._place, self._draws)
        return Payload(TASK_BYTES, (self._place, on_disk, self._storage, more))


def _one_less(running: list[Ref]) -> Script:
    """``ray.wait`` for any; those that are left."""
    ready = yield wait(running, fetch_local=False)
    yield drop(*(r for r, done in zip(running, ready, strict=True) if done))
    return [r for r, done in zip(running, ready, strict=True) if not done]


def _final_merge(running: RunningTask) -> Script:
    """Read back, merge, upload."""
    place, on_disk, storage, more = running.args[0].data
    size_bytes = place.plan.output_part_bytes
    yield _disk(size_bytes * on_disk, write=False)
    yield compute(place.costs.merge_core_s_per_byte * size_bytes * more)
    yield storage.store(size_bytes) if storage is not None else _disk(size_bytes, write=True)
    return [Payload(500)]


def map_task(running: RunningTask) -> Script:
    """Load, sort and cut, hand a block to every node's controller, wait until they are taken."""
    place, controllers, storage, longer = running.args[0].data
    plan, costs = place.plan, running.worker.costs
    size_bytes = plan.input_part_bytes
    yield storage.fetch(size_bytes) if storage is not None else _disk(size_bytes, write=False)
    yield compute(place.costs.map_core_s_per_byte * size_bytes * longer)
    more = place.stands_for - 1
    blocks: list[Ref] = []
    taken: list[Ref] = []
    me = running.worker.me.node_id
    for node, controller in controllers:
        block_bytes = place.block_bytes(own=node == me)
        block = yield put(Payload(block_bytes))
        if isinstance(block, TaskError):
            return block
        blocks.append(block)
        held = Sized(block, BLOCK_BYTES, (block,))
        taken += yield controller.call("add_block", block_bytes, held)
        yield spend(round(more * (costs.put_ns + costs.submit_actor_task_ns)))
    values = yield get(taken)
    yield drop(*taken, *blocks)
    return values if isinstance(values, TaskError) else [Payload(8)]


def _disk(size_bytes: float, *, write: bool) -> Ask:
    """Files of the task's node, on its disks in turn."""

    def begin(d: Driver) -> Any:
        env: Any = d.process.env
        disks = env.spill_disks(d.process.me.node_id)
        if not size_bytes or not disks:
            return None
        share = size_bytes / len(disks)
        left = [len(disks)]

        def done(_: object) -> None:
            left[0] -= 1
            if not left[0]:
                d.process.after(0, d.slept)

        def started(_: object) -> None:
            for disk in disks:
                (disk.write if write else disk.read)(share, done)

        d.process.after(d.take_lead(), started)
        return WAITS

    return Ask(begin)
