"""A loop played for all ranks by one script, in the process of rank 0.

Ranks of a loop said by numbers differ in nothing but what they write. Steps between checkpoints,
with their reports, are one event (``stretch.py``); a barrier is worked out (``barrier_ns``);
uploads and downloads are one flow per node, as wide as its ranks are many. A checkpoint's report
goes to the controller, those of metrics alone are counted. A test plays the same loops rank by rank
and call by call (``context.EachRank``) and finds the same.

A simplification: batches that the pipeline makes ahead while a save holds steps up (its prefetch)
are not counted.
"""

from __future__ import annotations

from typing import Any

from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.scripts import Event, Script, sleep, spawn, wait_for
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.loop import CheckpointSpec, SetUp, TrainLoop
from raysim.raylibs.train.reports import Checkpoint, TrainingReport
from raysim.raylibs.train.shards import seconds_per_batch
from raysim.raylibs.train.storage import Way
from raysim.raylibs.train.stretch import Pace, Stretch
from raysim.raylibs.train.sync_actor import barrier_ns
from raysim.units import to_ns


class AllRanks:
    """Plays a loop for a whole worker group."""

    def __init__(self, context: TrainContext, loop: TrainLoop) -> None:
        self.context = context
        self.gang = context.gang
        self.record = context.gang.record
        self.loop = loop
        self.world_size = context.world_size
        self.resumes = context.restored is not None
        self.done = context.restored.step if context.restored is not None else 0
        self._answered: Any = None
        self._free_ns = 0
        """When the queues of results are empty."""
        self._pending: Event | None = None
        """Of the latest asynchronous upload: its report is in the queue."""
        self._step_ns = to_ns(loop.step.seconds(self.world_size))
        self._noise = self.gang.env.sim.rng(f"train/{context.run_name}/steps")
        self._barrier_ns = barrier_ns(context.process.costs, self.world_size)
        self._watches = loop.on_preemption == "checkpoint"

    @property
    def preempted(self) -> bool:
        """A notice that no save has answered."""
        noticed = self.gang.noticed
        return self._watches and noticed is not None and self._answered is not noticed

    def _phase(self, phase: str) -> Script:
        at_ns = yield from self._together()
        self.record.phase(at_ns, phase)

    def _together(self) -> Script:
        """Now; never, where a rank is gone: the others wait for it for ever."""
        yield sleep(0)  # a script may have run ahead of the clock
        if self.gang.over:
            yield wait_for(Event())
        return self.gang.env.sim.now_ns

    # ---- before and after ------------------------------------------------------------------------

    def set_up(self, spec: SetUp) -> Script:
        """Ranks of a node share its cores and its way to the store."""
        if spec.core_s:
            yield from self._on_nodes(
                lambda process, ranks, then: process.compute(
                    spec.core_s, lambda: then(True), width=len(ranks)
                )
            )
        yield sleep(to_ns(spec.wait_s))
        if spec.read_bytes and not self.resumes:
            yield from self._on_nodes(
                lambda process, ranks, then: self.gang.store.move(
                    "read", process.me.node_id, spec.read_bytes, then, streams=len(ranks)
                )
            )

    def load(self, spec: CheckpointSpec) -> Script:
        """Read, then deserialise in one thread of each rank."""
        yield from self._phase("load")
        size_bytes = spec.read_bytes(self.world_size)
        yield from self._move("read", [size_bytes] * self.world_size)
        yield sleep(to_ns(size_bytes / spec.load_bytes_per_s))

    def finish(self) -> Script:
        """What is still uploaded; then every rank's thread ends."""
        if self._pending is not None and not self._pending.is_set:
            yield from self._phase("checkpoints")
            yield wait_for(self._pending)
        yield from self._phase("reports")
        self.gang.drained_ns = self._free_ns
        self.gang.finished.set(None)

    # ---- steps -----------------------------------------------------------------------------------

    def train(self, upto: int, *, last_reports: bool) -> Script:
        """As few stretches as what is uploaded meanwhile allows."""
        every = self.loop.report_every
        while self.done < upto and not self.preempted:
            pending = self._pending is not None and not self._pending.is_set
            if not pending or not every:
                yield from self._stretch(upto, last_reports=last_reports)
                continue
            report_at = (self.done // every + 1) * every  # it waits for the upload before it
            yield from self._stretch(min(upto, report_at), last_reports=False)
            if self.done == report_at and (self.done < upto or last_reports):
                yield from self._phase("reports")
                yield sleep(self._barrier_ns)
                yield from self._put(TrainingReport(metrics={"step": self.done}), self._pending)

    def _stretch(self, upto: int, *, last_reports: bool) -> Script:
        gang, begin_ns = self.gang, (yield from self._together())
        batch_ns = to_ns(seconds_per_batch(self.loop.dataset))
        look_ns = self._barrier_ns if self._watches else 0
        step_ns = self._drawn_ns(upto - self.done)
        every = self.loop.report_every
        pace = Pace(
            each_ns=max(step_ns, batch_ns) + look_ns, report_every=every,
            report_ns=self._barrier_ns,
        )  # fmt: skip
        stretch = Stretch(
            pace, gang.polls, begin_ns=begin_ns, first=self.done, last=upto, free_ns=self._free_ns,
            last_reports=last_reports,
        )  # fmt: skip
        self.record.phase(begin_ns, "steps")
        stopped = Event()
        process = self.context.process
        process.after(stretch.end_ns - begin_ns, stopped.set, upto)

        def note(upto_ns: int) -> int:
            done, end_ns = stretch.done_at(upto_ns)
            self._note(stretch, step_ns, done, end_ns)
            return end_ns

        def interrupt() -> None:
            now_ns = gang.env.sim.now_ns
            done = min(upto, stretch.done_at(now_ns)[0] + 1)
            process.after(max(0, stretch.end_of(done) - now_ns), stopped.set, done)

        gang.progress = note
        gang.interrupt = interrupt if self._watches else None
        done = yield wait_for(stopped)
        at_ns = yield from self._together()
        gang.progress = gang.interrupt = None
        if done == upto:
            self._free_ns = stretch.free_ns
        self._note(stretch, step_ns, done, at_ns)
        self.done = done

    def _note(self, stretch: Stretch, step_ns: int, done: int, at_ns: int) -> None:
        """What the time of a stretch went to, up to one of its steps."""
        steps = done - stretch.first
        waits_ns = steps * (stretch.pace.each_ns - step_ns)
        rest_ns = at_ns - stretch.begin_ns - steps * stretch.pace.each_ns
        if seconds_per_batch(self.loop.dataset):
            parts = {"steps": steps * step_ns, "data": waits_ns, "reports": rest_ns}
        else:
            parts = {"steps": steps * step_ns, "reports": waits_ns + rest_ns}
        self.record.stretch(stretch.begin_ns, steps, parts)
        self.record.reports += stretch.reports_by(done)

    def _drawn_ns(self, steps: int) -> int:
        """One step's time, in the mean of so many."""
        cv = self.loop.step_cv
        if not cv:
            return self._step_ns
        drawn = float(self._noise.standard_normal()) / steps**0.5
        return max(1, int(self._step_ns * (1.0 + cv * drawn)))

    # ---- checkpoints -----------------------------------------------------------------------------

    def save(self, spec: CheckpointSpec) -> Script:
        """Into local folders, then ``report()``."""
        yield from self._phase("checkpoints")
        self._answered = self.gang.noticed
        at_ns = self.gang.env.sim.now_ns
        sizes = [spec.written_bytes(rank, self.world_size) for rank in range(self.world_size)]
        yield sleep(to_ns(spec.gather_s + max(sizes) / spec.save_bytes_per_s))
        yield sleep(self._barrier_ns)
        checkpoint = Checkpoint(
            name=f"checkpoint_{self.done:06d}", step=self.done, reported_ns=at_ns,
            size_bytes=sum(sizes),
        )  # fmt: skip
        report = TrainingReport(metrics={"step": self.done}, checkpoint=checkpoint, of_all=True)
        before, self._pending = self._pending, Event()
        put = self._upload_and_put(report, sizes, spec.mode, (before, self._pending))
        if spec.mode == "ASYNC":
            yield spawn(put)
        else:
            yield from put

    def _upload_and_put(
        self, report: TrainingReport, sizes: list[float], mode: str,
        turn: tuple[Event | None, Event],
    ) -> Script:  # fmt: skip
        before, mine = turn
        if mode == "ASYNC" and before is not None:  # each worker has one thread for it
            yield wait_for(before)
        if mode != "NO_UPLOAD":
            yield from self._move("write", sizes)
        yield from self._put(report, before)
        mine.set()

    def _put(self, report: TrainingReport, before: Event | None) -> Script:
        """Into the queues, when the report before it is and when they are empty."""
        if before is not None:
            yield wait_for(before)
        at_ns = yield from self._together()
        if self._free_ns > at_ns:
            yield sleep(self._free_ns - at_ns)
            at_ns = yield from self._together()
        self._free_ns = self.gang.polls.after(at_ns)
        if report.checkpoint is None:
            self.record.reports += 1
        else:
            self.context.put(report, at_ns)

    # ---- all nodes at once -----------------------------------------------------------------------

    def _move(self, way: Way, sizes: list[float]) -> Script:
        """Each rank its bytes, those of a node together."""
        store = self.gang.store

        def move(process: CoreProcess, ranks: list[int], then: Any) -> None:
            mine = [sizes[rank] for rank in ranks if sizes[rank]]
            store.move(way, process.me.node_id, sum(mine), then, streams=max(1, len(mine)))

        yield from self._on_nodes(move)

    def _on_nodes(self, begin: Any) -> Script:
        """``begin(process, ranks, then)`` for each node; until all have ended."""
        yield from self._together()
        nodes: dict[NodeID, list[int]] = self.gang.nodes
        left, ended = len(nodes), Event()
        process = self.context.process

        def one_less(_: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                process.after(0, ended.set)

        for ranks in nodes.values():
            begin(self.gang.processes[ranks[0]], ranks, one_less)
        yield wait_for(ended)
        yield from self._together()
