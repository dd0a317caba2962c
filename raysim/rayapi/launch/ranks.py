"""A launcher's processes, from their start to the end of the last, or of the first that fails.

Real counterparts: ``deepspeed/launcher/launch.py`` (0.19), the elastic agent of torchrun (2.13).
The launcher imports what it needs, starts one process per GPU, looks at them again and again, and
ends all when one has failed. Each rank is a fiber of a process of its own on its node.

A process starts as a training worker of Ray's does: an interpreter, and imports that take a core as
long. ``init_process_group`` waits for all ranks and lets the time of a rendezvous pass.

Not modelled: restarts (``--max-restarts``), ssh, the file system that scripts are read from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from raysim.rayapi.fibers import HUB, Fiber
from raysim.rayapi.launch.commands import Command
from raysim.rayapi.launch.hosts import (
    Machine,
    Seat,
    arguments,
    environment,
    hosts_of,
    seats_of,
)
from raysim.rayapi.launch.script import Script
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.session import DriverDied, Session
from raysim.rayapi.train.summary import with_cpu_training, with_training
from raysim.rayapi.train.worker import Run, Worker
from raysim.raycore.process import CoreProcess
from raysim.raylibs.report import LibraryReport
from raysim.raylibs.train.context import TrainContext
from raysim.raylibs.train.gang import Gang
from raysim.raylibs.train.job import report_of
from raysim.raylibs.train.records import RunRecord
from raysim.raylibs.train.storage import Store
from raysim.units import to_ns

IMPORTS = {"deepspeed": 2, "torchrun": 1, "python": 0}
"""Processes that import torch one after the other before ranks start: ``runner.py``, and the
``launch.py`` that it starts; torchrun's agent."""
POLL_S = {"deepspeed": 1.0, "torchrun": 0.1, "python": 0.0}
"""How often it looks whether ranks have ended: ``launch.py``; ``--monitor-interval``."""
SIMPLIFICATIONS = (
    "A process starts as a training worker of Ray's: an interpreter and imports on one core.",
    "A file that torch.save writes goes to the first disk of its node.",
)


@dataclass(kw_only=True)
class Member:
    """One rank."""

    seat: Seat
    state: ProcessState
    script: Script
    core: CoreProcess | None = None
    fiber: Fiber | None = None


class Ranks:
    """One group of a launcher's.

    Parameters
    ----------
    session, command
        Whose, and what is launched.
    file, code
        The script.
    """

    def __init__(self, session: Session, command: Command, file: Path, code: Any) -> None:
        self.session = session
        self.command = command
        self.record = RunRecord(name=file.stem)
        env = session.env
        machines = [
            Machine(node_id=n.index, gpus=n.spec.gpu_count, cores=n.spec.vcpus)
            for n in env.nodes if session.cluster.is_up(n.index)
        ]  # fmt: skip
        self._code = code
        self._members = [self._member(seat, file) for seat in seats_of(hosts_of(command, machines))]
        self._gang = Gang(env, self.record, len(self._members), Store(env, None))
        self._on_gpus = self._members[0].seat.host.on_gpus
        self._run = Run(
            session=session, name=file.stem, folder=Path.cwd(), launched=True,
            gpus=1.0 if self._on_gpus else 0.0,
        )  # fmt: skip
        self._shared: Any = None
        self._told: Callable[[Any], object] | None = None
        self._failure: BaseException | None = None

    def _member(self, seat: Seat, file: Path) -> Member:
        command, state = self.command, ProcessState(self.session, None, is_driver=True)
        state.home = seat.host.machine.node_id
        package = command.script.rpartition(".")[0] if command.module else ""
        state.program = script = Script(
            file, arguments(command, file, seat), package, partial(self._died, seat)
        )
        return Member(seat=seat, state=state, script=script)

    # ---- the launcher ----------------------------------------------------------------------------

    def play(self) -> None:
        """In the launcher's fiber, to the end; the first rank's error is raised.

        Raises
        ------
        DriverDied
            A rank's process is gone.
        """
        fiber = HUB.current
        assert fiber is not None, "a launcher is a fiber"
        sim, record = self.session.sim, self.record
        record.begin_ns = sim.now_ns
        record.phase(sim.now_ns, "startup")
        first = self._members[0].seat.host.machine.node_id
        for _ in range(IMPORTS[self.command.kind]):
            fiber.block(lambda then: self._compute(first, then, None))
        record.state(sim.now_ns, "RUNNING")
        record.began(sim.now_ns, len(self._members), 0)
        record.attempts[-1].nodes = tuple(
            dict.fromkeys(m.seat.host.machine.node_id for m in self._members)
        )
        began_ns = sim.now_ns
        fiber.block(self._start)
        poll_ns = to_ns(POLL_S[self.command.kind])
        if poll_ns:
            fiber.sleep(-(sim.now_ns - began_ns) % poll_ns)
        self._end(fiber)
        self.session.env.reports.append(self._report())
        if self._failure is not None:
            raise self._failure

    def _compute(self, node_id: int, then: Callable[[Any], object], arg: Any) -> None:
        """An interpreter that imports torch."""
        costs, node = self.session.env.costs, self.session.env.nodes[node_id]
        core_s = costs.worker_start_core_s + costs.train_worker_core_s
        node.cpu.job(core_s, then, arg, failed=lambda *_: self._fail(_gone("", node_id)))

    def _start(self, told: Callable[[Any], object]) -> None:
        """All processes; ``told`` when the last has ended, or one has failed."""
        self._told = told
        for member in self._members:
            self._compute(member.seat.host.machine.node_id, self._up, member)

    def _up(self, member: Member) -> None:
        """It has imported what it needs."""
        if self._failure is None:
            self.session.cluster.driver(
                partial(self._ready, member), node_id=member.seat.host.machine.node_id
            )

    def _ready(self, member: Member, core: Any) -> None:
        member.core = member.state.core = core
        self.session.processes[core.me.worker_id] = member.state
        core.at_exit(partial(self._died, member.seat))
        self._gang.join(member.seat.rank, core)
        if all(m.core is not None for m in self._members):
            for each in self._members:
                self._run_script(each)

    def _run_script(self, member: Member) -> None:
        seat, core = member.seat, member.core
        assert core is not None, "a rank without its process"
        nobody: Any = None  # Ray Train's actors, of whom there are none
        worker = Worker(
            run=self._run,
            context=TrainContext(
                core, self._gang, nobody, rank=seat.rank, local_rank=seat.local_rank,
                local_world_size=len(seat.host.slots), node_rank=seat.node_rank,
                run_name=self._run.name, say=lambda: None,
            ),
            state=member.state,
        )  # fmt: skip
        machine = seat.host.machine
        if self.command.kind != "deepspeed" and self._on_gpus:
            worker.visible_devices = machine.gpus
        first = self._members[0].seat.host.machine.node_id
        for name, value in environment(self.command, seat, first).items():
            if name != "OMP_NUM_THREADS" or name.encode() not in member.state.environ:
                member.state.set_env(name, value)
        member.state.training = worker
        member.fiber = Fiber(
            member.state, None, partial(self._main, worker, member.script), self._ended,
            f"rank {seat.rank}",
        )  # fmt: skip
        member.fiber.start()

    def _main(self, worker: Worker, script: Script) -> None:
        """In a rank's fiber."""
        fiber = HUB.current
        assert fiber is not None, "a rank is a fiber"
        fiber.depth = 1  # what its own code takes on this machine is not charged
        self._set_up(worker)
        if self.command.kind == "python":
            worker.phase("between")  # others, when they have joined their group
        script.run(self._code)
        worker.phase("between")
        fiber.settle()

    def _set_up(self, worker: Worker) -> None:
        """torch on shapes, or on CPUs that really compute."""
        if self._on_gpus:
            from raysim.rayapi.shapes.steps import Shared
            from raysim.rayapi.shapes.world import begin

            self._shared = self._shared or Shared()
            begin(worker, self._shared)
            return
        from raysim.rayapi.shapes.cpu_patches import begin as begin_on_cpus
        from raysim.rayapi.shapes.cpu_steps import CpuShared

        self._shared = self._shared or CpuShared()
        begin_on_cpus(worker, self._shared)

    # ---- the end ---------------------------------------------------------------------------------

    def _ended(self, fiber: Fiber) -> None:
        """A rank's script has come to its end, well or not."""
        error, fiber.error = fiber.error, None
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        if error is not None:
            self._fail(error)
        elif all(m.fiber is not None and m.fiber.over for m in self._members):
            self._tell()

    def _died(self, seat: Seat, reason: str) -> None:
        self._fail(_gone(f"rank {seat.rank} ", seat.host.machine.node_id, reason))

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and self._told is not None:
            self._failure = error
            self._tell()

    def _tell(self) -> None:
        told, self._told = self._told, None
        if told is not None:
            told(None)

    def _end(self, fiber: Fiber) -> None:
        """Nobody is left when the launcher ends."""
        if self._failure is None:
            self._gang.finished.set()
        sim = self.session.sim
        self.record.state(sim.now_ns, "ERRORED" if self._failure is not None else "FINISHED")
        for member in self._members:
            core: Any = member.core
            if core is None or core.state != "up":
                continue
            self.session.processes.pop(core.me.worker_id, None)
            if self._failure is None:
                fiber.block(core.finish_job)
            else:
                self.session.env.launcher.kill(core.me.worker_id, reason="killed by its launcher")
        self.record.ended(sim.now_ns)

    def _report(self) -> LibraryReport:
        """What a run of Ray Train says, in a launcher's words."""
        failed, record = self._failure, self.record
        where = len(record.attempts[-1].nodes)
        done = f"{record.executed_steps()} steps on {len(self._members)} ranks of {where} node{'s' * (where > 1)}"
        text = f"{done}, {record.goodput:.1%} of the time"
        if failed is not None:
            text = f"failed after {done}: {str(failed).partition(chr(10))[0]}"
        report = report_of(record, ok=failed is None, text=text)
        ranks = Counter(m.seat.host.machine.node_id for m in self._members)
        report = replace(
            report, simplifications=SIMPLIFICATIONS,
            detail={**report.detail, "ranks": [[node, n] for node, n in ranks.items()]},
        )  # fmt: skip
        if self._shared is None:
            return report
        summary: Callable[..., LibraryReport] = (
            with_training if self._on_gpus else with_cpu_training
        )
        return summary(report, self._shared)


def _gone(who: str, node_id: int, reason: str = "its node is gone") -> DriverDied:
    return DriverDied(f"{who}on node {node_id} is gone: {reason}")
