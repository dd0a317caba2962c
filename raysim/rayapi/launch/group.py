"""Processes that start, run and end together: a launcher's ranks, or what ``spawn`` starts.

Real counterparts: the children of ``deepspeed/launcher/launch.py`` (0.19), of torchrun's agent, and
of ``torch/multiprocessing/spawn.py`` (2.13). Each is a fiber of a process of its own on its node,
which starts as a training worker of Ray's does: an interpreter, and imports that take a core as
long. Whoever has started them goes on when the last has ended, or the first has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.launch.hosts import Seat
from raysim.rayapi.launch.script import Script
from raysim.rayapi.process_state import ENVIRON, ProcessState
from raysim.rayapi.ranks.answering import Answering
from raysim.rayapi.session import DriverDied, Session
from raysim.rayapi.train.worker import Run, Worker
from raysim.raycore.ids import NodeID
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.gang import Gang
from raysim.raylibs.train.storage import Store

DEFAULTS = frozenset(["OMP_NUM_THREADS"])
"""Variables that are set only where the user has not."""


@dataclass(kw_only=True)
class Member:
    """One process."""

    seat: Seat
    script: Script
    main: Callable[[], object]
    """What it runs."""
    environment: Mapping[str, str]
    """Of its own, beside that of who starts it."""
    sees_gpus: int
    state: ProcessState
    core: Any = None
    fiber: Fiber | None = None


def begin_process(
    session: Session, node_id: NodeID, then: Callable[[Any], object], arg: Any,
    failed: Callable[[BaseException], object],
) -> None:  # fmt: skip
    """An interpreter that imports torch, on a core of a node."""
    costs = session.env.costs
    session.env.nodes[node_id].cpu.job(
        costs.worker_start_core_s + costs.train_worker_core_s, then, arg,
        failed=lambda *_: failed(gone("a process", node_id, "its node is off")),
    )  # fmt: skip


def gone(who: str, node_id: NodeID, reason: str) -> DriverDied:
    """What is said of a process that is no more."""
    return DriverDied(f"{who} on node {node_id} is gone: {reason}")


class Rank(Answering):
    """A launched one, which answers until somebody makes an optimizer.

    Of several ranks, what they hold of models that have not trained is not counted.
    """

    @property
    def prices_first(self) -> bool:  # type: ignore[override]
        """In a script that trains, a first step's models beside it take no time."""
        return not self.torch_steps.optimizers.made

    def rests_with(self, module: Any, share: float = 1.0) -> None:
        """Weights of a module that only answers are on its GPU."""
        if self.answers:
            super().rests_with(module, share)


class Group:
    """All of them.

    Parameters
    ----------
    session, run
        Whose, and what they share.
    record
        Told of steps and phases.
    members
        In order of rank.
    set_up
        What a process does to torch before its script.
    """

    def __init__(
        self, session: Session, run: Run, record: Any, members: Sequence[Member],
        set_up: Callable[[Worker], None],
    ) -> None:  # fmt: skip
        self.members = list(members)
        self._session = session
        self._run = run
        self._set_up = set_up
        self._record = record
        self._gang = self._gang_of(len(members))
        self._told: Callable[[Any], object] | None = None
        self._failure: BaseException | None = None

    def _gang_of(self, world_size: int) -> Gang:
        env = self._session.env
        return Gang(env, self._record, world_size, Store(env, None))

    def _watch(self, members: Sequence[Member]) -> None:
        for member in members:
            member.script.died = partial(self._died, member)
            member.state.program = member.script

    def play(self, fiber: Fiber) -> BaseException | None:
        """From the fiber that starts them; what the first to fail has raised."""
        self._watch(self.members)
        self._session.waiting = lambda: next(
            (m.fiber for m in self.members if m.fiber is not None and not m.fiber.over), fiber
        )
        fiber.block(self._start)
        return self._failure

    def grow(self, members: Sequence[Member]) -> None:
        """From the only process there is, which goes on as rank 0: others begin beside it."""
        (first,) = self.members
        alone, self._gang = self._gang, self._gang_of(1 + len(members))
        alone.finished.set()
        self._gang.join(0, first.core)
        first.state.training.context = self._context(first)
        self.members += members
        self._watch(members)
        assert first.fiber is not None, "who starts others runs"
        first.fiber.settle()
        first.fiber.block(partial(self._start_beside, members))

    def end(self, fiber: Fiber) -> None:
        """Nobody is left."""
        if self._failure is None:
            self._gang.finished.set()
        for member in self.members:
            core = member.core
            if core is None or core.state != "up":
                continue
            self._session.processes.pop(core.me.worker_id, None)
            if self._failure is None:
                fiber.block(core.finish_job)
            else:
                self._session.env.launcher.kill(core.me.worker_id, reason="killed by its launcher")

    # ---- start -----------------------------------------------------------------------------------

    def _start(self, told: Callable[[Any], object]) -> None:
        self._told = told
        self._begin(self.members)

    def _start_beside(self, members: Sequence[Member], then: Callable[[Any], object]) -> None:
        """Who starts them does not wait."""
        self._begin(members)
        self._session.sim.call_later(0, then, None)

    def _begin(self, members: Sequence[Member]) -> None:
        for member in members:
            begin_process(
                self._session, member.seat.host.machine.node_id, self._up, member, self._fail
            )

    def _up(self, member: Member) -> None:
        """It has imported what it needs."""
        if self._failure is None:
            self._session.cluster.driver(
                partial(self._ready, member), node_id=member.seat.host.machine.node_id
            )

    def _ready(self, member: Member, core: Any) -> None:
        member.core = member.state.core = core
        self._session.processes[core.me.worker_id] = member.state
        core.at_exit(partial(self._died, member))
        self._gang.join(member.seat.rank, core)
        if all(m.core is not None for m in self.members):
            for each in [m for m in self.members if m.fiber is None]:
                self._run_main(each)

    def _context(self, member: Member) -> TrainContext:
        """Its place among the others."""
        nobody: Any = None  # Ray Train's actors, of whom there are none
        seat = member.seat
        return TrainContext(
            member.core, self._gang, nobody, rank=seat.rank, local_rank=seat.local_rank,
            local_world_size=len(seat.host.slots), node_rank=seat.node_rank,
            run_name=self._run.name, say=lambda: None,
        )  # fmt: skip

    def _run_main(self, member: Member) -> None:
        seat, state = member.seat, member.state
        worker = state.training = self._worker(member)
        worker.shown_devices = member.sees_gpus
        for name, value in member.environment.items():
            if name not in DEFAULTS or ENVIRON.encodekey(name) not in state.environ:
                state.set_env(name, value)
        main = partial(self._main, worker, member.main)
        member.fiber = Fiber(state, None, main, self._ended, f"rank {seat.rank}")
        member.fiber.start()

    def _worker(self, member: Member) -> Worker:
        context, state = self._context(member), member.state
        if not self._run.gpus:
            return Worker(run=self._run, context=context, state=state)
        host = member.seat.host
        place = host.machine.node_id, host.slots[member.seat.local_rank]
        return Rank(
            run=self._run, context=context, state=state, name=self._run.name, places=[place]
        )

    def _main(self, worker: Worker, main: Callable[[], object]) -> None:
        """In its fiber."""
        fiber = HUB.current
        assert fiber is not None, "a rank is a fiber"
        fiber.depth = 1  # what its own code takes on this machine is not charged
        self._set_up(worker)
        if isinstance(worker, Rank):
            worker.answering.begin()
        main()
        worker.run_children()
        worker.phase("between")
        fiber.settle()

    # ---- the end ---------------------------------------------------------------------------------

    def _ended(self, fiber: Fiber) -> None:
        """Well or not."""
        error, fiber.error = fiber.error, None
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        if error is not None:
            self._fail(error)
        elif all(m.fiber is not None and m.fiber.over for m in self.members):
            self._tell()

    def _died(self, member: Member, reason: str) -> None:
        seat = member.seat
        self._fail(gone(f"rank {seat.rank}", seat.host.machine.node_id, reason))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and self._told is not None:
            self._failure = error
            self._tell()

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(None)
