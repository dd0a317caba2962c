"""One run of a launcher: its own start, its ranks, what is reported of them.

Real counterparts: ``deepspeed/launcher/{runner,launch}.py`` (0.19), ``torch/distributed/run.py``
(2.13). The launcher imports what it needs, starts one process per GPU, looks at them again and
again, and ends all when one has failed.

Not modelled: restarts (``--max-restarts``), ssh, the file system that scripts are read from;
``torch.multiprocessing.spawn`` over several nodes.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raysim.errors import ScenarioError
from raysim.rayapi.fibers import HUB
from raysim.rayapi.launch.accelerate import read_launch
from raysim.rayapi.launch.commands import Command
from raysim.rayapi.launch.group import Group, Member, begin_process
from raysim.rayapi.launch.hosts import (
    Host,
    Machine,
    Seat,
    arguments,
    environment,
    hosts_of,
    seats_of,
)
from raysim.rayapi.launch.script import Script
from raysim.rayapi.process_state import ProcessState
from raysim.rayapi.ranks.answered import OF_SCRIPTS, answers_of
from raysim.rayapi.ranks.gpu_use import gpu_use
from raysim.rayapi.session import Session
from raysim.rayapi.train.summary import with_cpu_training, with_training
from raysim.rayapi.train.worker import Environments, Run, Worker
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.report import LibraryReport, Table
from raysim.raylibs.train.job import SAYS, report_of
from raysim.raylibs.train.records import RunRecord
from raysim.units import to_ns

IMPORTS = {"deepspeed": 2, "torchrun": 1, "python": 0}
"""Processes that import torch one after the other before ranks start: ``runner.py``, and the
``launch.py`` that it starts; torchrun's agent. ``accelerate launch`` is one more, unless the agent
is the same process."""
POLL_S = {"deepspeed": 1.0, "torchrun": 0.1, "python": 0.0}
"""How often it looks whether ranks have ended: ``launch.py``; ``--monitor-interval``."""
SIMPLIFICATIONS = (
    "A process starts as a training worker of Ray's: an interpreter and imports on one core.",
    "A file that torch.save writes goes to the first disk of its node.",
)
NO_RESTARTS = "A rank that fails ends the run: --max-restarts is not played."


class Ranks:
    """Of one command.

    Parameters
    ----------
    session, command
        Whose, and what is launched.
    file, code
        The script.
    """

    def __init__(self, session: Session, command: Command, file: Path, code: Any) -> None:
        self._session = session
        self._command = command
        self._file = file
        self._code = code
        self._record = RunRecord(name=file.stem)
        machines = [
            Machine(
                node_id=n.index, gpus=n.spec.gpu_count, vcpus=n.spec.vcpus, cores=n.spec.cpu.cores
            )
            for n in session.env.nodes if session.cluster.is_up(n.index)
        ]  # fmt: skip
        seats = list(seats_of(hosts_of(command, machines)))
        self._first = seats[0].host.machine.node_id
        self._on_gpus = seats[0].host.on_gpus
        self._run = Run(
            session=session, name=file.stem, folder=Path.cwd(), launched=True, spawn=self._spawn,
            gpus=1.0 if self._on_gpus else 0.0, bound=command.binds_cores,
            start_others=self._start_others,
        )  # fmt: skip
        self._machines = machines
        self._ranks: Group | None = None
        self._shared: Any = None
        self._accelerate: dict[int, Mapping[str, str]] = {}
        self._seats = seats
        """Of the largest group there has been."""

    def play(self) -> None:
        """In the launcher's fiber, to the end; what the first rank to fail has raised is raised."""
        fiber = HUB.current
        assert fiber is not None, "a launcher is a fiber"
        sim, record, kind = self._session.sim, self._record, self._command.kind
        record.begin_ns = sim.now_ns
        record.phase(sim.now_ns, "startup")
        before = IMPORTS[kind] + (self._command.accelerate is not None and kind != "torchrun")
        for _ in range(before):
            fiber.block(lambda then: begin_process(self._session, self._first, then, None, then))
        record.state(sim.now_ns, "RUNNING")
        record.began(sim.now_ns, len(self._seats), 0)
        began_ns = sim.now_ns
        group = self._ranks = self._group([self._member(seat) for seat in self._seats])
        self._session.unfinished[self] = self._stopped
        failure = group.play(fiber)
        del self._session.unfinished[self]
        poll_ns = to_ns(POLL_S[kind])
        if poll_ns:
            fiber.sleep(-(sim.now_ns - began_ns) % poll_ns)
        record.state(sim.now_ns, "ERRORED" if failure is not None else "FINISHED")
        group.end(fiber)
        record.ended(sim.now_ns)
        self._session.env.reports.append(self._report(failure))
        if failure is not None:
            raise failure

    def _group(self, members: list[Member]) -> Group:
        return Group(self._session, self._run, self._record, members, self._set_up)

    def _member(self, seat: Seat) -> Member:
        """A rank of the launcher's."""
        command = self._command
        package = command.script.rpartition(".")[0] if command.module else ""
        script = Script(self._file, arguments(command, self._file, seat), package)
        return Member(
            seat=seat, script=script, main=partial(script.run, self._code),
            environment={**environment(command, seat, self._first), **self._of_accelerate(seat)},
            sees_gpus=self._seen(seat), state=self._process(seat),
        )  # fmt: skip

    def _of_accelerate(self, seat: Seat) -> Mapping[str, str]:
        """What ``accelerate launch`` gives to all, on a machine of so many GPUs."""
        words, gpus = self._command.accelerate, seat.host.machine.gpus if self._on_gpus else 0
        if words is None:
            return {}
        if gpus not in self._accelerate:
            self._accelerate[gpus] = dict(read_launch(words, gpus).environment)
        return self._accelerate[gpus]

    def _seen(self, seat: Seat) -> int:
        """GPUs of its node; what DeepSpeed hides of them is in the environment."""
        return seat.host.machine.gpus if self._on_gpus else 0

    def _process(self, seat: Seat) -> ProcessState:
        state = ProcessState(self._session, None, is_driver=True)
        state.home = seat.host.machine.node_id
        return state

    def _set_up(self, worker: Worker) -> None:
        """torch on shapes, or on CPUs that really compute."""
        if self._on_gpus:
            from raysim.rayapi.shapes.shared import Shared
            from raysim.rayapi.shapes.world import begin

            self._shared = self._shared or Shared()
            begin(worker, self._shared)
        else:
            from raysim.rayapi.shapes.cpu_patches import begin as begin_on_cpus
            from raysim.rayapi.shapes.cpu_steps import CpuShared

            self._shared = self._shared or CpuShared()
            begin_on_cpus(worker, self._shared)
        if self._command.kind == "python":
            worker.phase("between")  # others: when they have joined their group

    # ---- scripts that start their own ranks ------------------------------------------------------

    def _start_others(self, first: Worker, nodes: Sequence[Environments]) -> None:
        """The script again: ``first`` is the process that runs already."""
        if len(self._seats) > 1 or self._ranks is None:
            raise NotEmulatedError("processes that one of several ranks starts", "torchrun")
        machines = [m for m in self._machines if m.gpus or not self._on_gpus]
        if len(nodes) > len(machines):
            raise ScenarioError(
                f"{self._command.title} starts ranks on {len(nodes)} nodes, and the cluster has "
                f"{len(machines)}{' with GPUs' if self._on_gpus else ''}"
            )
        hosts = [
            Host(machine=m, slots=tuple(range(len(each))), on_gpus=self._on_gpus)
            for m, each in zip(machines, nodes, strict=False)
        ]
        member = self._ranks.members[0]
        member.seat, *seats = self._seats = list(seats_of(hosts))
        self._record.attempts[-1].world_size = len(self._seats)
        self._ranks.grow([
            self._beside(first, member, seat, nodes[seat.node_rank][seat.local_rank])
            for seat in seats
        ])  # fmt: skip

    def _beside(
        self, first: Worker, member: Member, seat: Seat, environment: Mapping[str, str]
    ) -> Member:
        """A process whose whole environment is said."""
        name, *args = member.script.argv
        package = member.script.module.__package__ or ""
        script = Script(self._file, [str(Path(name).resolve()), *args], package)
        state = self._process(seat)
        state.environ = {}
        state.cwd = first.state.cwd
        return Member(
            seat=seat, script=script, main=partial(script.run, self._code),
            environment=environment, sees_gpus=self._seen(seat), state=state,
        )  # fmt: skip

    # ---- spawn -----------------------------------------------------------------------------------

    def _spawn(self, parent: Worker, calls: Sequence[tuple[Any, Any, Any]]) -> None:
        """``torch.multiprocessing.spawn``: each child imports the script and calls a function."""
        count = len(calls)
        fiber = HUB.current
        assert fiber is not None, "a rank is a fiber"
        if len(self._seats) > 1:
            raise NotEmulatedError("processes that one of several ranks starts", "torchrun")
        machine = self._seats[0].host.machine
        if self._on_gpus and count > machine.gpus:
            raise NotEmulatedError(f"{count} processes on {machine.gpus} GPUs", "one process each")
        host = Host(machine=machine, slots=tuple(range(count)), on_gpus=self._on_gpus)
        self._seats = list(seats_of([host]))
        self._record.attempts[-1].world_size = count
        members = []
        for seat in self._seats:
            state = self._process(seat)
            state.environ = dict(parent.state.environ)
            script = Script(self._file, list(fiber.process.program.argv), "")
            function, args, named = calls[seat.rank]
            main = partial(script.call, self._code, function, *copy.deepcopy((args, named)))
            members.append(
                Member(seat=seat, script=script, main=main, environment={},
                       sees_gpus=self._seen(seat), state=state)
            )  # fmt: skip
        group = self._group(members)
        failure = group.play(fiber)
        group.end(fiber)
        if failure is not None:
            raise failure

    # ---- afterwards ------------------------------------------------------------------------------

    def _stopped(self) -> None:
        """In its midst: what there has been."""
        now_ns = self._session.sim.now_ns
        self._record.state(now_ns, "FINISHED")
        self._record.ended(now_ns)
        self._session.env.reports.append(self._report(None))

    def _report(self, failure: BaseException | None) -> LibraryReport:
        """What a run of Ray Train says, in a launcher's words."""
        record, ranks = self._record, Counter(s.host.machine.node_id for s in self._seats)
        steps, world, where = record.executed_steps(), sum(ranks.values()), len(ranks)
        done = (
            f"{steps} steps on {world} rank{'s' * (world > 1)} of {where} node{'s' * (where > 1)}"
        )
        text = f"{done}, {record.goodput:.1%} of the time"
        if failure is not None:
            text = f"failed after {done}: {str(failure).partition(chr(10))[0]}"
        restarts = self._command.max_restarts
        left_out = (*SIMPLIFICATIONS, *((NO_RESTARTS,) if restarts else ()))
        report = report_of(record, ok=failure is None, text=text)
        report = replace(
            report, simplifications=left_out,
            detail={**report.detail, "ranks": [[node, n] for node, n in ranks.items()]},
        )  # fmt: skip
        if self._shared is None:
            return report
        if self._on_gpus and not steps:
            report = self._answered(report, done.partition("steps ")[2])
        summary: Callable[..., LibraryReport] = (
            with_training if self._on_gpus else with_cpu_training
        )
        return summary(report, self._shared)

    def _answered(self, report: LibraryReport, where: str) -> LibraryReport:
        """Of a script that has trained nothing: what its forwards take."""
        name = self._run.name
        tally = gpu_use(self._session).tallies.get(name)
        if tally is None or not tally.forwards:
            return report
        found = answers_of({name: tally}, self._session, OF_SCRIPTS)
        told = found.text.removesuffix(".")
        return replace(
            report, text=f"{told} {where}" if report.ok else report.text,
            metrics={**report.metrics, **found.metrics, "gpu_mem_peak_bytes": tally.held_bytes},
            tables=(*found.tables, *map(_between, report.tables)), bound_by=found.bound_by,
            would_help=found.would_help or report.would_help,
            simplifications=(*report.simplifications, *found.simplifications),
        )  # fmt: skip


def _between(table: Table) -> Table:
    """Where the time went, of a script without steps."""
    old, new = SAYS["between"], "forwards and what is between them"
    rows = tuple((new if row[0] == old else row[0], *row[1:]) for row in table.rows)
    return replace(table, rows=rows)
