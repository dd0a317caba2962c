"""One rank's side of Ray Train: ``report()``, the queue of results, the checkpoint handed over.

Real counterpart: ``TrainContext`` of ``python/ray/train/v2/_internal/execution/context.py``. A
report meets the other ranks at the synchronization actor, uploads the rank's own folder (in the
training thread, or in the worker's one upload thread), waits for the reports before it, and is put
into a queue that holds one: the controller's poll takes it out.

Checkpoints of user programs and of loops said by numbers go the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, now, sleep, spawn, wait_for
from raysim.raycore.tasks import TaskError
from raysim.raylibs.actors import ActorHandle
from raysim.raylibs.train.gang import Gang
from raysim.raylibs.train.loop import CheckpointSpec, SetUp, TrainLoop, UploadMode
from raysim.raylibs.train.reports import Checkpoint, TrainingReport
from raysim.raylibs.train.shards import Shard
from raysim.units import to_ns

NODE_DIED = TaskError("TASK_EXECUTION_EXCEPTION", "the checkpoint's upload has failed")


class TrainContext:
    """Of one rank, in its process.

    Parameters
    ----------
    process, rank, world_size, local_rank, local_world_size, node_rank
        Who and where it is.
    gang, sync
        The others.
    restored
        The latest checkpoint that the controller has registered.
    data
        The manager of the trainer's datasets, if it has any.
    say
        Called when a poll would find something new.
    """

    def __init__(
        self, process: CoreProcess, gang: Gang, sync: ActorHandle, *, rank: int,
        local_rank: int = 0, local_world_size: int = 1, node_rank: int = 0,
        restored: Checkpoint | None = None, data: ActorHandle | None = None,
        run_name: str = "", say: Callable[[], object],
    ) -> None:  # fmt: skip
        self.process = process
        self.gang = gang
        self.sync = sync
        self.rank = rank
        self.local_rank = local_rank
        self.local_world_size = local_world_size
        self.node_rank = node_rank
        self.restored = restored
        self.data = data
        self.run_name = run_name
        self.queue: list[tuple[TrainingReport, int]] = []
        """Results that no poll has taken, and when each was put."""
        self._say = say
        self._free: Event | None = None
        self._turn: Event | None = None
        """The report before this one is in the queue."""
        self._uploader: Event | None = None
        """The upload thread is free."""
        self._reported = 0

    @property
    def world_size(self) -> int:
        """Ranks."""
        return self.gang.world_size

    # ---- report() --------------------------------------------------------------------------------

    def report(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None,
        mode: UploadMode = "SYNC", streams: int = 1,
    ) -> Script:  # fmt: skip
        """``ray.train.report``: a TaskError if the other ranks cannot be met, else None."""
        self._reported += 1
        name = yield from self.sync.ask(
            "broadcast_from_rank_zero", self.rank, self.world_size, checkpoint and checkpoint.name
        )
        if isinstance(name, TaskError):
            return name
        before, self._turn = self._turn, Event()
        put = self._upload_and_put(metrics, checkpoint, mode, streams, (before, self._turn))
        if mode != "ASYNC":
            return (yield from put)
        free, self._uploader = self._uploader, Event()
        yield spawn(_after(free, put), self._uploader.set)
        return None

    def all_reported(self, timeout_s: float | None = None) -> Script:
        """``get_all_reported_checkpoints``: those kept once all its reports, or the time, are over.

        Each with its metrics, worst first or oldest first.
        """
        manager = self.gang.manager
        assert manager is not None, "its controller has begun it"
        until_ns = None if timeout_s is None else (yield now()) + to_ns(timeout_s)
        while manager.count < self._reported:
            left_ns = None if until_ns is None else until_ns - (yield now())
            if left_ns is not None and left_ns <= 0:
                break
            yield wait_for(manager.counted, left_ns)
        return list(manager.results)

    def _upload_and_put(
        self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None, mode: UploadMode,
        streams: int, turn: tuple[Event | None, Event],
    ) -> Script:  # fmt: skip
        if checkpoint is not None and mode != "NO_UPLOAD":
            ok = yield from self.move("write", checkpoint.size_bytes, streams)
            if not ok:
                return NODE_DIED
        before, mine = turn
        if before is not None:
            yield wait_for(before)
        while self.queue:
            self._free = Event()
            yield wait_for(self._free)
        self.put(TrainingReport(metrics=metrics, checkpoint=checkpoint), (yield now()))
        mine.set()
        return None

    def put(self, report: TrainingReport, ready_ns: int) -> None:
        """Into the queue."""
        self.queue.append((report, ready_ns))
        self._say()

    def take(self) -> None:
        """A poll has taken the oldest."""
        self.queue.pop(0)
        if self._free is not None:
            self._free.set()

    def move(self, way: Any, size_bytes: float, streams: int = 1) -> Script:
        """Move bytes between this node and the run's store; False if that failed."""
        yield sleep(0)  # a script may have run ahead of the clock
        ended = Event()
        process = self.process
        self.gang.store.move(
            way, process.me.node_id, size_bytes,
            lambda ok: process.after(0, ended.set, ok), streams=streams,
        )  # fmt: skip
        return (yield wait_for(ended))

    def flush(self) -> Script:
        """``checkpoint_upload_threadpool.shutdown()``."""
        if self._uploader is not None:
            yield wait_for(self._uploader)


def _after(free: Event | None, then: Script) -> Script:
    if free is not None:
        yield wait_for(free)
    return (yield from then)


class EachRank:
    """Plays a loop in one rank, step by step and call by call."""

    def __init__(self, context: TrainContext, loop: TrainLoop) -> None:
        self.context = context
        self.loop = loop
        self.world_size = context.world_size
        self.resumes = context.restored is not None
        self.done = context.restored.step if context.restored is not None else 0
        self._known: Any = None
        self._answered: Any = None
        """What ``get_preemption_info()`` has said, and what was saved for."""
        self._shard: Shard | None = None
        env = context.gang.env
        self._noise = env.sim.rng(f"train/{context.run_name}/steps")

    @property
    def preempted(self) -> bool:
        """A notice that no save has answered."""
        return self._known is not None and self._answered is not self._known

    def _phase(self, phase: str) -> Script:
        """Rank 0 speaks for all."""
        at_ns = yield now()
        if self.context.rank == 0 and not self.context.gang.over:
            self.context.gang.record.phase(at_ns, phase)

    def set_up(self, spec: SetUp) -> Script:
        """On a core of its own node, which its neighbours use too."""
        if spec.core_s:
            ended = Event()
            process = self.context.process
            process.after(0, lambda _: process.compute(spec.core_s, ended.set))
            yield wait_for(ended)
        if spec.wait_s:
            yield sleep(to_ns(spec.wait_s))
        if spec.read_bytes and not self.resumes:
            share = spec.read_bytes / self.context.local_world_size
            yield from self.context.move("read", share)
        if self.loop.dataset is not None:
            self._shard = self.loop.dataset.shard(
                self.context.process, self.context.rank, self.world_size
            )

    def load(self, spec: CheckpointSpec) -> Script:
        """Read, then deserialise in one thread."""
        yield from self._phase("load")
        size_bytes = spec.read_bytes(self.world_size)
        yield from self.context.move("read", size_bytes)
        yield sleep(to_ns(size_bytes / spec.load_bytes_per_s))

    def train(self, upto: int, *, last_reports: bool) -> Script:
        """One step after another."""
        gang, every = self.context.gang, self.loop.report_every
        while self.done < upto:
            if self._shard is not None:
                yield from self._phase("data")
                yield from self._shard.next_batch()
            factor = 1.0
            if self.loop.step_cv and self.context.rank == 0:
                factor += self.loop.step_cv * float(self._noise.standard_normal())
            length_ns = to_ns(self.loop.step.seconds(self.world_size) * factor)
            yield from gang.step(self.context.process, self.context.rank, length_ns)
            self.done += 1
            if self.loop.on_preemption == "checkpoint":
                yield from self._look()
            if every and self.done % every == 0 and (self.done < upto or last_reports):
                yield from self._phase("reports")
                yield from self.context.report({"step": self.done})
            if self.preempted:
                return

    def _look(self) -> Script:
        """``get_preemption_info()``: what rank 0 knows, for all."""
        yield from self._phase("reports")
        context = self.context
        self._known = yield from context.sync.ask(
            "broadcast_from_rank_zero", context.rank, self.world_size, context.gang.noticed
        )

    def save(self, spec: CheckpointSpec) -> Script:
        """Into a local folder, then ``report()``."""
        yield from self._phase("checkpoints")
        self._answered = self._known
        rank = self.context.rank
        at_ns = yield now()
        size_bytes = spec.written_bytes(rank, self.world_size)
        yield sleep(to_ns(spec.gather_s + size_bytes / spec.save_bytes_per_s))
        checkpoint = None
        if size_bytes:
            checkpoint = Checkpoint(
                name=f"checkpoint_{self.done:06d}", step=self.done, reported_ns=at_ns,
                size_bytes=size_bytes,
            )  # fmt: skip
        yield from self.context.report({"step": self.done}, checkpoint, spec.mode)

    def finish(self) -> Script:
        """What is still uploaded."""
        yield from self._phase("checkpoints")
        yield from self.context.flush()
        yield from self._phase("reports")
