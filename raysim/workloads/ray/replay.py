"""A recorded program again, on another cluster: tasks, durations and nesting of a ``ray timeline``.

A driver submits each task that has no recorded parent at the time after the first at which it was
submitted (or all at once); a task that submitted others does so at the recorded instants of its own
time. It then waits for those that had ended when it ended, as a parent in ``ray.get`` does, and
takes the rest of its own time. Methods go to an actor of their own per recorded worker, in order,
and are called by the driver.

Simplification: what a parent waited for is not recorded; it is taken to have waited once, after its
last call. Its time between is its own, so that waiting is not counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from raysim.raycore.ids import ActorID
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import CPU, NOTHING, ResourceSet
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import (
    NONE,
    ActorOptions,
    Payload,
    Ref,
    RemoteFunction,
    TaskOptions,
)
from raysim.units import NS_PER_S
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import Uses, Work
from raysim.workloads.ray.timeline_file import RecordedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Tasks as recorded; what a timeline does not say, said here."""

    tasks: tuple[RecordedTask, ...]
    num_cpus: Mapping[str, float] = field(default_factory=dict)
    """By name; others ask for 1 CPU (actors: to be placed)."""
    return_bytes: Mapping[str, int] = field(default_factory=dict)
    """By name; others return nothing of size."""
    uses: Uses = "time"
    """``time``: durations as recorded; ``cores``: on cores that others may want too."""
    speed: float = 1.0
    """Of the new nodes, relative to those of the record: durations are divided by it."""
    at_once: bool = False
    """The driver submits as fast as it can."""

    def __post_init__(self) -> None:
        checks = Checks("replay")
        if not self.tasks:
            checks.wrong("tasks", "there are none")
        checks.more_than("speed", self.speed, 0)
        known = {task.name for task in self.tasks}
        for key in ("num_cpus", "return_bytes"):
            for name, value in getattr(self, key).items():
                checks.at_least(f"{key}.{name}", value, 0)
                if name not in known:
                    names = ", ".join(sorted(known)[:5])
                    checks.wrong(f"{key}.{name}", f"no such task; there are {names}")
        checks.done()


def start_replay(spec: Replay, process: CoreProcess, then: Then) -> Program:
    """Start it in a driver; ``then`` when all has ended. Draws nothing."""
    return _Replay(spec, process, then).start()


class _Replay:
    """What all its tasks share."""

    def __init__(self, spec: Replay, process: CoreProcess, then: Then) -> None:
        self.spec = spec
        self.then = then
        self.program = Program(process)
        self.children: dict[int | None, list[int]] = {}
        for index, task in enumerate(spec.tasks):
            if not task.creation:
                parent = None if task.actor else task.parent
                self.children.setdefault(parent, []).append(index)
        self.options: dict[str, TaskOptions] = {}
        self.actors: dict[str, ActorID] = {}
        self.refs: list[Ref] = []

    # the driver

    def start(self) -> Program:
        """Actors first, then every task of the driver."""
        program, tasks = self.program, self.spec.tasks
        for index in sorted(range(len(tasks)), key=lambda i: (tasks[i].submit_ns, i)):
            task = tasks[index]
            if task.actor and task.worker not in self.actors:
                self.actors[task.worker] = program.create_actor(*self.creation(task))
        roots = self.children.get(None, [])
        begin_ns = min((tasks[i].submit_ns for i in roots), default=0)
        for index in sorted(roots, key=lambda i: (tasks[i].submit_ns, i)):
            if not self.spec.at_once:
                program.run_until(self.scaled(tasks[index].submit_ns - begin_ns))
            self.refs += self.send(program, index)
        if self.refs:
            program.get(self.refs, self.finished)
        else:
            self.finished()
        return program

    def scaled(self, own_ns: int) -> int:
        """A part of a task's, or the driver's, own time on the new nodes."""
        return round(own_ns / self.spec.speed)

    def creation(self, task: RecordedTask) -> tuple[TaskOptions, Work]:
        """Of the actor that the recorded worker was."""
        made = [t for t in self.spec.tasks if t.creation and t.worker == task.worker]
        name = made[0].name if made else task.name.rpartition(".")[0] + ".__init__"
        duration_ns = made[0].end_ns - made[0].start_ns if made else 0
        cpus = self.spec.num_cpus.get(name)
        function = RemoteFunction(name=name, body=partial(_create, self.scaled(duration_ns)))
        one = ResourceSet.of({CPU: 1})
        options = TaskOptions(
            function=function,
            resources=NOTHING if cpus is None else ResourceSet.of({CPU: cpus}),
            placement_resources=one if cpus is None else None,
            actor=ActorOptions(),
        )
        return options, Work(0.0, "time", 1.0, (NONE,))

    def finished(self) -> None:
        """All of the driver's tasks have ended."""
        self.program.drop(self.refs)
        for actor in self.actors.values():
            self.program.process.remove_actor_handle(actor, lead_ns=self.program.lead_ns)
        self.then(self.program.done())

    # any process

    def send(self, program: Program, index: int) -> list[Ref]:
        """One recorded task, from whoever submits it."""
        task = self.spec.tasks[index]
        options = self.options.get(task.name)
        if options is None:
            options = self.options[task.name] = self.make_options(task)
        todo = partial(_Execution, self, index)
        if task.actor:
            return program.call(self.actors[task.worker], options, todo)
        return program.submit(options, todo)

    def make_options(self, task: RecordedTask) -> TaskOptions:
        """One set per name."""
        cpus = 0 if task.actor else self.spec.num_cpus.get(task.name, 1)
        return TaskOptions(
            function=RemoteFunction(name=task.name, body=_execute),
            resources=ResourceSet.of({CPU: cpus}),
        )


def _create(duration_ns: int, running: RunningTask) -> None:
    running.keep(None)
    running.sleep(duration_ns, partial(running.finish, (NONE,)))


def _execute(running: RunningTask) -> None:
    execution: Callable[[RunningTask], _Execution] = running.args[0].data
    execution(running).go_on()


class _Execution:
    """One recorded task, running again."""

    def __init__(self, replay: _Replay, index: int, running: RunningTask) -> None:
        self.replay = replay
        self.running = running
        self.task = replay.spec.tasks[index]
        tasks = replay.spec.tasks
        self.children = sorted(replay.children.get(index, []), key=lambda i: tasks[i].submit_ns)
        self.program = Program(running.worker, parent=running.spec, tasks=replay.program.tasks)
        self.sent = 0
        self.reached_ns = self.task.start_ns
        self.awaited: list[Ref] = []
        self.left_alone: list[Ref] = []

    def go_on(self, *_: object) -> None:
        """To the next call of its own, or to the end of its calls."""
        if self.sent < len(self.children):
            at_ns = self.replay.spec.tasks[self.children[self.sent]].submit_ns
            own_ns, self.reached_ns = max(0, at_ns - self.reached_ns), max(at_ns, self.reached_ns)
            self.spend(own_ns, self.send_next)
        elif self.awaited:
            self.program.get(self.awaited, self.children_ended)
        else:
            self.children_ended()

    def send_next(self) -> None:
        """Submit a child."""
        index = self.children[self.sent]
        self.sent += 1
        refs = self.replay.send(self.program, index)
        (self.awaited if self.replay.spec.tasks[index].nested else self.left_alone).extend(refs)
        self.go_on()

    def children_ended(self) -> None:
        """What it did after the last child it waited for had ended."""
        tasks = self.replay.spec.tasks
        ends = [tasks[i].end_ns for i in self.children if tasks[i].nested]
        own_ns = max(0, self.task.end_ns - max([self.reached_ns, *ends]))
        self.spend(own_ns, self.end)

    def spend(self, own_ns: int, then: Callable[[], object]) -> None:
        """Its own time; calls it has just made have taken some of it."""
        own_ns = self.replay.scaled(own_ns)
        if own_ns <= self.program.lead_ns:
            then()
            return
        self.program.lead_ns = 0
        if self.replay.spec.uses == "time":
            self.running.sleep(own_ns, then)
        else:
            self.running.compute(own_ns / NS_PER_S, then)

    def end(self) -> None:
        """Return."""
        self.program.drop([*self.awaited, *self.left_alone])
        size_bytes = self.replay.spec.return_bytes.get(self.task.name, 0)
        self.running.finish((Payload(size_bytes),), lead_ns=self.program.lead_ns)
