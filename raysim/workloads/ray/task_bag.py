"""A bag of independent tasks: the loop ``[f.remote(x) for x in xs]`` and its ``ray.get``.

With ``max_in_flight`` the loop holds back by ``ray.wait``, as Ray's own patterns advise; with
``submitters`` it is spread over that many tasks, each the owner of its share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from raysim.kernel.rng import Streams
from raysim.raycore.process import CoreProcess
from raysim.raycore.resources import NOTHING
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import NONE, Payload, Ref, RemoteFunction, TaskOptions
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import draw_s
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBag:
    """``tasks`` calls of one function."""

    tasks: int
    shape: TaskShape = field(default_factory=TaskShape)
    arg_bytes: int = 0
    """By value, with each task; above 100 KiB it is put first, each time."""
    return_bytes: int = 0
    max_in_flight: int = 0
    """0: all at once."""
    submitters: int = 0
    """Tasks (of 0 CPU) that submit in the driver's place; 0: the driver itself."""
    collect: Literal["get", "wait"] = "get"
    """``get`` brings all values to who submitted; ``wait`` leaves them where they are."""

    def __post_init__(self) -> None:
        checks = Checks("task_bag")
        checks.count("tasks", self.tasks)
        checks.count("arg_bytes", self.arg_bytes, 0)
        checks.count("return_bytes", self.return_bytes, 0)
        checks.count("max_in_flight", self.max_in_flight, 0)
        checks.count("submitters", self.submitters, 0)
        if self.submitters > self.tasks > 0:
            checks.wrong("submitters", f"more than there are tasks ({self.tasks})")
        if self.collect not in {"get", "wait"}:
            checks.wrong("collect", f"must be get or wait (got {self.collect!r})")
        checks.done()


def start_task_bag(spec: TaskBag, process: CoreProcess, streams: Streams, then: Then) -> Program:
    """Start it in a driver; ``then`` when it has ended. Draws from ``workload/task_bag``."""
    durations = draw_s(spec.shape.runs, streams("workload/task_bag"), spec.tasks)
    program = Program(process)
    end = partial(_end, program, then)
    if spec.submitters:
        _submit_through_tasks(spec, program, durations, end)
    else:
        _Loop(spec, program, spec.shape.options(), durations, end).go_on()
    return program


def _end(program: Program, then: Then) -> None:
    then(program.done())


class _Loop:
    """The submitting loop of one process."""

    def __init__(
        self,
        spec: TaskBag,
        program: Program,
        options: TaskOptions,
        durations: Sequence[float],
        then: Callable[[], object],
    ) -> None:
        self.spec = spec
        self.program = program
        self.options = options
        self.durations = durations
        self.then = then
        self.submitted = 0
        self.pending: list[Ref] = []
        self.arguments = (Payload(spec.arg_bytes),) if spec.arg_bytes else ()
        self.returns = (Payload(spec.return_bytes),)

    def go_on(self) -> None:
        """Submit as much as may be in flight, then wait."""
        program, spec = self.program, self.spec
        room = spec.max_in_flight or len(self.durations)
        while self.submitted < len(self.durations) and len(self.pending) < room:
            todo = spec.shape.work(self.durations[self.submitted], self.returns)
            self.pending += program.submit(self.options, todo, *self.arguments)
            self.submitted += 1
        if self.submitted < len(self.durations):
            program.wait(self.pending, 1, self.ready)
        elif not self.pending:
            self.then()
        elif spec.collect == "get":
            program.get(self.pending, self.finished)
        else:
            program.wait(self.pending, len(self.pending), self.waited)

    def ready(self, flags: list[bool]) -> None:
        """Some have ended: take them, submit others."""
        ended = [ref for ref, is_ready in zip(self.pending, flags, strict=True) if is_ready]
        self.pending = [ref for ref, is_ready in zip(self.pending, flags, strict=True)
                        if not is_ready]  # fmt: skip
        if self.spec.collect == "get":
            self.program.get(ended, partial(self.taken, ended))
        else:
            self.taken(ended)

    def taken(self, ended: list[Ref]) -> None:
        """Their values are here, or not wanted."""
        self.program.drop(ended)
        self.go_on()

    def waited(self, _flags: list[bool]) -> None:
        """All have ended."""
        self.finished()

    def finished(self) -> None:
        """The loop's end."""
        self.program.drop(self.pending)
        self.then()


def _submit_through_tasks(
    spec: TaskBag, program: Program, durations: list[float], then: Callable[[], object]
) -> None:
    """One submitting task per share; shares differ by one task at most."""
    options = spec.shape.options()

    def body(running: RunningTask) -> None:
        share: tuple[float, ...] = running.args[0].data.share
        inner = Program(running.worker, parent=running.spec, tasks=program.tasks)
        loop = _Loop(spec, inner, options, share, lambda: running.finish((NONE,)))
        loop.go_on()

    function = RemoteFunction(name=f"workload.{spec.shape.name}.submitter", body=body)
    outer = TaskOptions(function=function, resources=NOTHING, strategy="SPREAD")
    refs: list[Ref] = []
    for k in range(spec.submitters):
        share = tuple(durations[k :: spec.submitters])
        refs += program.submit(outer, Work(0.0, "time", 1.0, (NONE,), share))

    def finished() -> None:
        program.drop(refs)
        then()

    program.get(refs, finished)
