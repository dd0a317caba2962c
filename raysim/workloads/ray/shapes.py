"""What a kind of task asks for and does; its body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from raysim.raycore.resources import CPU, GPU, MEMORY, NOTHING, ResourceSet
from raysim.raycore.running import RunningTask
from raysim.raycore.tasks import (
    ActorOptions,
    Payload,
    RemoteFunction,
    RuntimeEnv,
    Strategy,
    TaskOptions,
)
from raysim.workloads.ray.checks import Checks
from raysim.workloads.ray.durations import Constant, Duration, to_ns

Uses = Literal["cores", "time"]
"""``cores``: the duration is computed on as many threads as the task has CPUs (at least one), on
cores shared with everything else of its node; ``time``: it passes, as in ``time.sleep``.
"""


class Work(NamedTuple):
    """One task's own part, carried by its first argument."""

    duration_s: float
    uses: Uses
    width: float
    returns: tuple[Payload, ...]
    share: tuple[float, ...] = ()
    """Of a task that submits others: their durations."""


def work(running: RunningTask) -> None:
    """The body: take the time, return."""
    todo: Work = running.args[0].data
    then = partial(running.finish, todo.returns)
    if not todo.duration_s:
        then()
    elif todo.uses == "time":
        running.sleep(to_ns(todo.duration_s), then)
    else:
        running.compute(todo.duration_s, then, width=todo.width)


def create(running: RunningTask) -> None:
    """The body of an actor's creation: take the time, keep nothing."""
    running.keep(None)
    work(running)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskShape:
    """A remote function: its time, what it asks for."""

    name: str = "task"
    runs: Duration = field(default_factory=lambda: Constant(seconds=0.0))
    uses: Uses = "cores"
    num_cpus: float = 1
    num_gpus: float = 0
    memory_bytes: int = 0
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom ones."""
    strategy: Strategy = "DEFAULT"
    max_retries: int = 3
    max_calls: int | None = None
    """None: Ray's default, 1 for tasks with a GPU, else no limit."""
    runtime_env: RuntimeEnv | None = None

    def __post_init__(self) -> None:
        checks = Checks(self.name)
        checks.at_least("num_cpus", self.num_cpus, 0)
        checks.at_least("num_gpus", self.num_gpus, 0)
        if self.num_gpus > 1 and self.num_gpus != round(self.num_gpus):
            checks.wrong("num_gpus", f"above 1 must be whole (got {self.num_gpus:g})")
        checks.at_least("memory_bytes", self.memory_bytes, 0)
        for name, quantity in self.resources.items():
            checks.at_least(f"resources.{name}", quantity, 0)
            if name in {CPU, GPU, MEMORY}:
                checks.wrong(f"resources.{name}", "has a setting of its own")
        if self.uses not in {"cores", "time"}:
            checks.wrong("uses", f"must be cores or time (got {self.uses!r})")
        checks.count("max_retries", self.max_retries, -1)
        checks.done()

    def resource_set(self) -> ResourceSet:
        """What each task holds while it runs."""
        own = {CPU: self.num_cpus, GPU: self.num_gpus, MEMORY: self.memory_bytes}
        return ResourceSet.of({**own, **self.resources})

    def options(self, *, num_returns: int = 1, strategy: Strategy | None = None) -> TaskOptions:
        """One set of options, to be made once: each is a scheduling class of its own."""
        default_max_calls = 1 if self.num_gpus else 0
        return TaskOptions(
            function=RemoteFunction(name=f"workload.{self.name}", body=work),
            resources=self.resource_set(),
            num_returns=num_returns,
            max_retries=self.max_retries,
            strategy=self.strategy if strategy is None else strategy,
            runtime_env=self.runtime_env,
            max_calls=default_max_calls if self.max_calls is None else self.max_calls,
        )

    def work(self, duration_s: float, returns: tuple[Payload, ...]) -> Work:
        """One task's own part."""
        return Work(duration_s, self.uses, max(1.0, self.num_cpus), returns)


def actor_class(shape: TaskShape, actor: ActorOptions, *, reserve_cpu: bool) -> TaskOptions:
    """Options of actors whose methods have this shape.

    Without ``reserve_cpu`` an actor needs 1 CPU to be placed and holds none, as Ray has it when
    ``num_cpus`` is not said.
    """
    held = shape.resource_set()
    if not reserve_cpu:
        held = ResourceSet({name: n for name, n in held.items() if name != CPU})
    return TaskOptions(
        function=RemoteFunction(name=f"workload.{shape.name}.__init__", body=create),
        resources=held,
        placement_resources=None if reserve_cpu else held.plus(ResourceSet.of({CPU: 1})),
        strategy=shape.strategy,
        runtime_env=shape.runtime_env,
        actor=actor,
    )


def method(shape: TaskShape, actor: ActorOptions) -> TaskOptions:
    """Options of a call of such an actor."""
    return TaskOptions(
        function=RemoteFunction(name=f"workload.{shape.name}.call", body=work),
        resources=NOTHING,
        max_retries=actor.max_task_retries,
    )
