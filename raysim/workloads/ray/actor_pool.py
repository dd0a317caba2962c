"""A pool of equal actors that share a list of calls.

Real counterpart: ``ray.util.ActorPool`` with ``in_flight=1`` (an actor gets its next call when its
last has ended), or actors called in turn without looking, with ``in_flight=0``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from raysim.kernel.rng import Streams
from raysim.raycore.ids import ActorID
from raysim.raycore.process import CoreProcess
from raysim.raycore.tasks import NONE, ActorOptions, Payload, Ref
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import draw_s
from raysim.workloads.ray.program import Program, Then
from raysim.workloads.ray.shapes import TaskShape, actor_class, method


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorPool:
    """``calls`` over ``actors``."""

    actors: int
    calls: int
    shape: TaskShape = field(default_factory=lambda: TaskShape(name="Actor"))
    """Of a call; what it asks for is held by the actor."""
    reserve_cpu: bool = False
    """Hold ``shape.num_cpus`` for life; False: 1 CPU to be placed, none afterwards."""
    init_s: float = 0.0
    """What ``__init__`` takes: loading a model."""
    arg_bytes: int = 0
    return_bytes: int = 0
    in_flight: int = 1
    """Calls at an actor at a time; 0: all calls are sent at once, each actor in turn."""
    max_concurrency: int = 1
    is_async: bool = False
    max_restarts: int = 0
    max_task_retries: int = 0

    def __post_init__(self) -> None:
        checks = Checks("actor_pool")
        checks.count("actors", self.actors)
        checks.count("calls", self.calls)
        checks.at_least("init_s", self.init_s, 0)
        checks.count("arg_bytes", self.arg_bytes, 0)
        checks.count("return_bytes", self.return_bytes, 0)
        checks.count("in_flight", self.in_flight, 0)
        checks.count("max_concurrency", self.max_concurrency)
        checks.count("max_restarts", self.max_restarts, -1)
        checks.count("max_task_retries", self.max_task_retries, -1)
        checks.done()


def start_actor_pool(
    spec: ActorPool, process: CoreProcess, streams: Streams, then: Then
) -> Program:
    """Start it in a driver; ``then`` when all calls have ended. Draws ``workload/actor_pool``."""
    durations = draw_s(spec.shape.runs, streams("workload/actor_pool"), spec.calls)
    program = Program(process)
    _Pool(spec, program, durations, then).start()
    return program


class _Pool:
    """The driver's loop."""

    def __init__(
        self, spec: ActorPool, program: Program, durations: list[float], then: Then
    ) -> None:
        self.spec = spec
        self.program = program
        self.durations = durations
        self.then = then
        self.actors: list[ActorID] = []
        self.pending: dict[Ref, ActorID] = {}
        self.called = 0
        actor = ActorOptions(
            max_concurrency=spec.max_concurrency,
            is_async=spec.is_async,
            max_restarts=spec.max_restarts,
            max_task_retries=spec.max_task_retries,
        )
        self.creation = actor_class(spec.shape, actor, reserve_cpu=spec.reserve_cpu)
        self.method = method(spec.shape, actor)
        self.arguments = (Payload(spec.arg_bytes),) if spec.arg_bytes else ()
        self.returns = (Payload(spec.return_bytes),)

    def start(self) -> None:
        """Make the actors, send what may be sent."""
        spec = self.spec
        init = spec.shape.work(spec.init_s, (NONE,))
        for _ in range(spec.actors):
            self.actors.append(self.program.create_actor(self.creation, init))
        first = min(spec.calls, spec.actors * spec.in_flight) if spec.in_flight else spec.calls
        for k in range(first):
            self.call(self.actors[k % spec.actors])
        self.go_on()

    def call(self, actor: ActorID) -> None:
        """The next call, if any is left."""
        if self.called < len(self.durations):
            todo = self.spec.shape.work(self.durations[self.called], self.returns)
            self.called += 1
            for ref in self.program.call(actor, self.method, todo, *self.arguments):
                self.pending[ref] = actor

    def go_on(self) -> None:
        """Wait for one call while others are to be sent, then for all."""
        refs = list(self.pending)
        if not refs:
            self.finished()
        elif self.called < len(self.durations):
            self.program.wait(refs, 1, partial(self.ready, refs))
        else:
            self.program.get(refs, self.finished)

    def ready(self, refs: list[Ref], flags: list[bool]) -> None:
        """Take values, and keep their actors busy."""
        ended = [ref for ref, is_ready in zip(refs, flags, strict=True) if is_ready]
        self.program.get(ended, partial(self.taken, ended))

    def taken(self, ended: list[Ref]) -> None:
        """The values are here."""
        self.program.drop(ended)
        for ref in ended:
            self.call(self.pending.pop(ref))
        self.go_on()

    def finished(self) -> None:
        """Let go of everything."""
        self.program.drop(list(self.pending))
        for actor in self.actors:
            self.program.process.remove_actor_handle(actor, lead_ns=self.program.lead_ns)
        self.then(self.program.done())
