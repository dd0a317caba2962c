"""Processes of Ray Core that compute on GPUs with torch: ranks that a program makes by hand.

Real counterpart: an actor with ``num_gpus`` that calls ``torch.distributed.init_process_group``
itself, as RLHF frameworks do. Its torch works on shapes (``rayapi.shapes``) like a training
worker's; alone it is a group of one, and whoever joins a process group becomes a rank of the group
that meets at the same address.

Tasks with GPUs, stages of Ray Data, replicas of Serve and trials of Tune begin in the same way.

Not modelled: ranks that leave a group while the others go on.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.fibers import HUB
from raysim.rayapi.ranks.answering import Answering
from raysim.rayapi.ranks.gpu_use import Phase, Place, gpu_use
from raysim.rayapi.shapes.links import Link
from raysim.rayapi.shapes.shared import Shared
from raysim.rayapi.shapes.world import ThreadState
from raysim.rayapi.shapes.world import begin as begin_on_shapes
from raysim.rayapi.train.summary import with_training
from raysim.rayapi.train.worker import Run
from raysim.rayapi.util.collective.groups import Meeting
from raysim.raycore.scripts import Script, sleep
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.gang import Gang
from raysim.raylibs.train.job import report_of
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.storage import Store
from raysim.raylibs.train.trainer import PROCESS_GROUP_S
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.rayapi.fibers import Fiber
    from raysim.rayapi.process_state import ProcessState
    from raysim.rayapi.session import Session
    from raysim.rayapi.shapes.prediction import Prediction
    from raysim.raycore.process import CoreProcess

LIBRARY = "ranks"


@dataclass(kw_only=True)
class Crew:
    """A group of ranks, and what they know together."""

    gang: HandGang
    shared: Shared = field(default_factory=Shared)


@dataclass
class Crews:
    """All groups of a session."""

    session: Session
    made: list[Crew] = field(default_factory=list)
    meetings: dict[str, Meeting] = field(default_factory=dict)

    def new(self, members: dict[int, tuple[Place, CoreProcess | None]], name: str) -> Crew:
        """Of these ranks."""
        record = RunRecord(name=name)
        now_ns = self.session.now_ns
        record.begin_ns = now_ns
        record.phase(now_ns, "startup")
        record.state(now_ns, "RUNNING")
        record.began(now_ns, len(members), 0)
        crew = Crew(gang=HandGang(self.session, record, members))
        self.made.append(crew)
        return crew

    def finish(self) -> None:
        """At the end: what groups have trained."""
        for crew in self.made:
            record = crew.gang.record
            if not crew.shared.steps and crew.shared.too_large is None:
                continue
            record.state(self.session.now_ns, "FINISHED")
            record.ended(self.session.now_ns)
            steps, world = record.executed_steps(), crew.gang.world_size
            text = f"{record.name}: {steps} steps on {world} rank{'s' * (world > 1)}."
            report = report_of(record, ok=crew.shared.too_large is None, text=text)
            report = replace(report, bound_by="", would_help=(), tables=())  # an iteration's say it
            report = with_training(report, crew.shared)
            self.session.env.reports.append(replace(report, tables=report.tables[:1]))


def crews_of(session: Session) -> Crews:
    """Made with the first rank."""
    return session.library(LIBRARY, Crews)


class HandGang(Gang):
    """Ranks on the GPUs that Ray gave their actors."""

    def __init__(
        self, session: Session, record: RunRecord,
        members: dict[int, tuple[Place, CoreProcess | None]],
    ) -> None:  # fmt: skip
        super().__init__(session.env, record, len(members), Store(session.env, None))
        self.places = {rank: place for rank, (place, _) in sorted(members.items())}
        self._use = gpu_use(session)
        self.work: dict[int, tuple[int, int]] = {}
        """Of each rank's step under way: nanoseconds alone, of which its kernels take so many."""
        self.finished.set()  # no controller waits for reports of it
        for rank, (_, core) in sorted(members.items()):
            if core is not None:
                self.join(rank, core)

    @property
    def nodes(self) -> dict[int, list[int]]:
        """Ranks on each node, in order of rank."""
        found: dict[int, list[int]] = {}
        for rank, place in self.places.items():
            found.setdefault(place[0], []).append(rank)
        return found

    def step(self, process: CoreProcess, rank: int, length_ns: int) -> Script:
        """One rank's, on its GPU from when the last has come and after other processes' kernels."""
        place, now_ns = self.places[rank], self.env.sim.now_ns
        total_ns, busy_ns = self.work.get(rank, (length_ns, 0))
        begin_ns = now_ns - max(0, total_ns - length_ns)
        free_ns = self._use.queue([place], begin_ns, busy_ns)
        yield sleep(max(0, free_ns - now_ns - length_ns))
        yield from super().step(process, rank, length_ns)
        now_ns = self.env.sim.now_ns
        self._use.spend("update", [place], now_ns - self._length_ns, now_ns)


class HandMade(Answering):
    """One process.

    Parameters
    ----------
    session, state
        Whose.
    places
        Its GPUs; none: a driver that makes tensors.
    """

    def __init__(self, session: Session, state: ProcessState, places: Sequence[Place]) -> None:
        name = state.actor.info.name if state.actor is not None else "driver"
        run = Run(
            session=session, name=name, folder=Path.cwd(), launched=True,
            gpus=1.0 if places else 0.0,
        )  # fmt: skip
        node = places[0][0] if places else _home(state)
        self._place = places[0] if places else (node, -1)
        self.crew = crew = crews_of(session).new({0: (self._place, state.core)}, name)
        context = _context(crew.gang, 0, state, node)
        super().__init__(run=run, context=context, state=state, name=name, places=places)
        self.shown_devices = len(places)
        self.met_at = ""
        """Where it has last looked for others (``torch.distributed.rendezvous``)."""
        self._whole: Link | None = None
        self._threads: Any = WeakKeyDictionary()
        """torch's state of those that have not ended."""
        self._idle: list[Any] = []

    @property
    def visible_devices(self) -> int:
        """GPUs it holds, whatever their numbers are."""
        return self.shown_devices

    @property
    def devices(self) -> range:
        """Of those that it sees."""
        return range(1 if self.places else 0)

    def join_group(
        self, backend: Any = None, init_method: str | None = None, *_more: Any,
        world_size: int | None = -1, rank: int | None = -1, **_others: Any,
    ) -> None:  # fmt: skip
        """``init_process_group``: with whoever meets at the same address.

        Raises
        ------
        ValueError
            It is in one already, or nobody has said its place.
        """
        del backend
        if self.in_group:
            raise ValueError("trying to initialize the default process group twice!")
        rank = _said("RANK", rank)
        world_size = _said("WORLD_SIZE", world_size)
        address = init_method or "env://"
        if address.startswith("env://"):
            _asked_for("MASTER_ADDR")
            address = f"tcp://{os.environ['MASTER_ADDR']}:{_said('MASTER_PORT', None)}"
        self.meet_others(address, world_size, rank)

    def meet_others(self, address: str, world_size: int, rank: int) -> None:
        """Become a rank of a group; all wait for the last."""
        fiber, session = this_fiber(), self.run.session
        crews = crews_of(session)
        meeting = crews.meetings.setdefault(address, Meeting())
        found = meeting.meet("group", rank, (self._place, fiber.process.core), world_size)
        if found.made is None:
            found.made = crews.new(dict(found), self.name)
        self.crew = crew = found.made
        self.context = _context(crew.gang, rank, self.state, self._place[0])
        if self.torch_steps is not None:
            self.torch_steps.shared = crew.shared
        if world_size > 1:
            self.sleep_ns(to_ns(PROCESS_GROUP_S))
        self.in_group = True
        self.phase("between")

    def enter(self) -> None:
        """A slice begins; a driver may have connected since the last."""
        if self.state.core is not None:
            self.context.process = self.state.core
        self.in_thread(HUB.current)
        super().enter()

    def begins_in(self, fiber: Fiber) -> None:
        """Its torch works on shapes from here on, in this thread first."""
        self._threads[fiber] = self.state_of_torch

    def in_thread(self, fiber: Fiber | None) -> None:
        """torch's state is this thread's; who ends leaves its own to the next, as a pool does."""
        found = self._threads.get(fiber)
        if found is None:
            idle = self._idle.pop() if self._idle else None
            found = self._threads[fiber] = idle or ThreadState([self.torch_steps.mode])
        self.state_of_torch = found

    def leave(self) -> None:
        """A slice has ended, with its thread or not."""
        super().leave()
        fiber = HUB.current
        if fiber is not None and fiber.over:
            self._idle.append(self._threads.pop(fiber))

    def read_bytes(self, size_bytes: float) -> None:
        """From its node's disk; before ``ray.init`` nobody's clock runs."""
        if self.state.core is not None:
            super().read_bytes(size_bytes)

    # ---- time and memory -------------------------------------------------------------------------

    def waits_for_gpu(self, length_ns: int, *, learns: bool) -> None:
        """What was queued runs to its end."""
        this_fiber().settle()
        begin_ns = self.run.session.sim.now_ns
        self.sleep_ns(length_ns)
        self.spends("update" if learns else "forward", begin_ns)

    def spends(self, phase: Phase, begin_ns: int) -> None:
        """Its GPUs have, from then on until now."""
        use = gpu_use(self.run.session)
        use.spend(phase, self.places, begin_ns, self.run.session.sim.now_ns)

    def weights_move(self, seconds: float) -> None:
        """Weights are copied on its GPU."""
        this_fiber().settle()
        begin_ns = self.run.session.sim.now_ns
        self.sleep_ns(to_ns(seconds))
        self.spends("weight sync", begin_ns)

    def copies(self, size_bytes: float, kind: Any, *, pinned: bool) -> None:
        """Of one that trains, what it takes to the host (steps have the rest)."""
        super().copies(size_bytes, kind, pinned=pinned)
        if not self.answers and self.places and kind == "d2h":
            self.weights_move(self.answering.copy_s(size_bytes, kind, pinned=pinned))

    def took(self, found: Prediction) -> None:
        """A step: at its peak all of it, afterwards what torch keeps until its cache is emptied."""
        super().took(found)
        self.answering.starts()
        self.crew.gang.work[self.context.rank] = found.step_ns, found.busy_ns
        self.holds(found.peak_bytes, phase="update")
        self.rest_bytes = _resting_bytes(found)

    def gathers(self, size_bytes: float) -> None:
        """Of the ranks of its group, who all come."""
        if self.context.world_size == 1:
            return
        if self._whole is None:
            name = f"ranks {id(self.crew)}"
            self._whole = Link(name, self.context.world_size, self.context.rank)
        self._whole.takes("all_gather", size_bytes)

    def offloads(self, size_bytes: float, seconds: float) -> None:
        """States to main memory, or back, over PCIe."""
        this_fiber().settle()
        begin_ns = self.run.session.sim.now_ns
        super().offloads(size_bytes, seconds)
        self.spends("sleep and wake", begin_ns)
        left = max(self._context_bytes, self.rest_bytes - size_bytes)
        self.holds(left, phase="sleep and wake")

    def empties_cache(self) -> None:
        """``torch.cuda.empty_cache()``: weights, states and what lies outside stay."""
        if self.rest_bytes and not self.offloaded_bytes:
            self.holds(self.rest_bytes)


def _resting_bytes(found: Prediction) -> float:
    """Between steps, once the cache is empty: what steps begin with."""
    fullest = found.outcome.fullest
    return fullest.states_bytes + fullest.outside_bytes + found.beside_bytes


def _said(name: str, given: int | None) -> int:
    if given is not None and given != -1:
        return int(given)
    _asked_for(name)
    return int(os.environ[name])


def _asked_for(name: str) -> None:
    if name not in os.environ:
        raise ValueError(
            "Error initializing torch.distributed using env:// rendezvous: environment variable "
            f"{name} expected, but not set"
        )


def _home(state: ProcessState) -> int:
    return state.core.me.node_id if state.core is not None else state.home or 0


def _context(gang: HandGang, rank: int, state: ProcessState, node: int) -> TrainContext:
    nobody: Any = None
    core: Any = state.core or SimpleNamespace(me=SimpleNamespace(node_id=node))
    beside = gang.nodes[node]
    return TrainContext(
        core, gang, nobody, rank=rank, local_rank=beside.index(rank),
        local_world_size=len(beside), node_rank=list(gang.nodes).index(node),
        run_name=gang.record.name, say=lambda: None,
    )  # fmt: skip


def begin(fiber: Fiber, gpus: Sequence[int], node: int | None = None) -> HandMade:
    """From here on torch works on shapes in the fiber's process, on these GPUs of its node."""
    state = fiber.process
    if isinstance(state.training, HandMade):
        return state.training
    node = _home(state) if node is None else node
    worker = HandMade(state.session, state, [(node, gpu) for gpu in gpus])
    state.training, state.priced = worker, True
    begin_on_shapes(worker, worker.crew.shared)
    worker.begins_in(fiber)
    return worker


def begin_on(fiber: Fiber, gpus: Sequence[int], name: str, *, only_answers: bool = False) -> None:
    """Code of a process that holds these GPUs begins, of a program that has torch.

    A worker that ran a task on other GPUs, or on none, does not go on where that has left.
    """
    state = fiber.process
    before = state.training
    if isinstance(before, HandMade) and not state.is_driver:
        if [gpu for _, gpu in before.places] == list(gpus):
            return
        before.leave()
        state.training, state.priced = None, False
    if gpus and state.training is None:
        worker = begin(fiber, gpus)
        worker.name, worker.only_answers = name, only_answers
        worker.answering.begin()


def begin_driver() -> None:
    """A driver on a node with GPUs, whose last one it takes if it wants one: Ray counts from 0."""
    fiber = HUB.here()
    if fiber is None or not fiber.process.is_driver or fiber.process.training is not None:
        return
    session = fiber.process.session
    if session.cluster is not None:
        node = _home(fiber.process)
        gpus = session.env.nodes[node].spec.gpu_count
        if gpus:
            begin(fiber, [gpus - 1], node)
