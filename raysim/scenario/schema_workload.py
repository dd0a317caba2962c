"""Scenarios whose job is a generated workload: tasks, actors and objects in place of a script.

Keys are those of the specs in ``workloads.ray``, with units; a section of tasks has what
``@ray.remote`` takes, by Ray's names.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from raysim.scenario.quantities import Bytes, PositiveCount, Seconds
from raysim.scenario.section import Section

Few = Annotated[int, Field(ge=1, le=1_000_000)]
Limit = Annotated[int, Field(ge=0, le=1_000_000)]
Retries = Annotated[int, Field(ge=-1, le=1_000_000)]
Quantity = Annotated[float, Field(ge=0, le=1e9)]
UsesKey = Literal["cores", "time"]
S = TypeVar("S", bound=Section)
_PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def per_second(value: Any) -> float:
    """``20/s``, ``90/min`` or ``1000/h`` in units of 1/s; ValueError of anything else."""
    if isinstance(value, float):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*/\s*(s|min|h)\s*", str(value))
    if match is None or not 0 < float(match[1]) < 1e9:
        raise ValueError(f"expected a rate such as '20/s', '90/min' or '1000/h', got {value!r}")
    return float(match[1]) / _PERIODS[match[2]]


PerSecond = Annotated[
    float,
    BeforeValidator(per_second),
    WithJsonSchema({"type": "string", "examples": ["20/s"]}),
]


def _time_or_section(value: Any) -> Any:
    return value if isinstance(value, dict) else {"constant": value}


class UniformSection(Section):
    """Anything between two times."""

    low: Seconds = Field(description="The shortest.")
    high: Seconds = Field(description="The longest.")


class LogNormalSection(Section):
    """Most are near the median, few are far above: stragglers."""

    median: Seconds = Field(description="Half are shorter.")
    sigma: Annotated[float, Field(ge=0, le=10)] = Field(
        description="Of the logarithm: 0.5 puts the 99th percentile at 3.2 times the median."
    )


class DurationSection(Section):
    """How long tasks run; one of the kinds below, or a time alone, which is ``constant``."""

    constant: Seconds | None = Field(None, description="All the same.")
    uniform: UniformSection | None = Field(None, description="Anything between two times.")
    exponential: Seconds | None = Field(None, description="Memoryless, with this mean.")
    lognormal: LogNormalSection | None = Field(None, description="A median with stragglers.")
    empirical: list[Seconds] | None = Field(
        None, min_length=1, description="Measured times, drawn with replacement."
    )

    @property
    def kind(self) -> str:
        """The one that was given."""
        return _given(self)[0]

    @model_validator(mode="after")
    def _one_kind(self) -> DurationSection:
        return _exactly_one(self, "duration")


class ShapeSection(Section):
    """What a kind of task does and asks for."""

    name: str | None = Field(None, min_length=1, description="Name of the remote function.")
    duration: Annotated[DurationSection, BeforeValidator(_time_or_section)] = Field(  # type: ignore[assignment]
        "0s", description="How long each runs, such as 50ms or {exponential: 50ms}."
    )
    uses: UsesKey = Field(
        "cores",
        description="cores: the duration is computed on num_cpus threads of the node's shared "
        "cores; time: it passes, as in time.sleep.",
    )
    num_cpus: Quantity = Field(1.0, description="As in @ray.remote.")
    num_gpus: Quantity = Field(0.0, description="As in @ray.remote.")
    memory: Bytes = Field(0, description="As in @ray.remote, such as 2GiB.")
    resources: dict[str, Quantity] = Field(
        default_factory=dict, description="Custom resources, as in @ray.remote."
    )
    scheduling_strategy: Literal["DEFAULT", "SPREAD"] = Field(
        "DEFAULT", description="As in @ray.remote."
    )


class TaskSection(ShapeSection):
    """A remote function."""

    max_retries: Retries = Field(3, description="As in @ray.remote; -1: no limit.")
    max_calls: Few | None = Field(
        None, description="As in @ray.remote; Ray's default is 1 with GPUs, else no limit."
    )


class TaskBagSection(TaskSection):
    """Independent tasks: ``ray.get([f.remote(x) for x in xs])``."""

    tasks: PositiveCount = Field(description="How many, such as 10000 or 1M.")
    arg_bytes: Bytes = Field(0, description="By value with each task, such as 10kB.")
    return_bytes: Bytes = Field(0, description="Of each result.")
    max_in_flight: Limit = Field(0, description="Held back by ray.wait; 0: all at once.")
    submitters: Limit = Field(0, description="Tasks that submit in the driver's place.")
    collect: Literal["get", "wait"] = Field(
        "get", description="get: values come to who submitted; wait: they stay where they are."
    )


class ActorPoolSection(ShapeSection):
    """Calls shared by equal actors, as ``ray.util.ActorPool`` does."""

    actors: Few = Field(description="How many actors.")
    calls: PositiveCount = Field(description="How many calls in all.")
    reserve_cpu: bool = Field(
        False, description="Actors hold num_cpus for life; otherwise 1 CPU only to be placed."
    )
    init: Seconds = Field(0.0, description="What __init__ takes, such as 20s to load a model.")
    arg_bytes: Bytes = Field(0, description="By value with each call.")
    return_bytes: Bytes = Field(0, description="Of each result.")
    in_flight: Limit = Field(1, description="Calls at an actor at a time; 0: all at once.")
    max_concurrency: Few = Field(1, description="As in @ray.remote.")
    is_async: bool = Field(False, description="An asyncio actor.")
    max_restarts: Retries = Field(0, description="As in @ray.remote.")
    max_task_retries: Retries = Field(0, description="As in @ray.remote.")


class ShuffleSection(Section):
    """All to all: every reducer takes one partition of every mapper."""

    mappers: Few = Field(description="Map tasks, each with `reducers` return values.")
    reducers: Few = Field(description="Reduce tasks, each with `mappers` arguments.")
    total_bytes: Bytes = Field(description="Of all partitions together, such as 100GB.")
    map: TaskSection = Field(default_factory=TaskSection, description="What a mapper does.")
    reduce: TaskSection = Field(default_factory=TaskSection, description="What a reducer does.")
    output_bytes: Bytes = Field(0, description="Of each reducer.")
    fetch: bool = Field(False, description="Bring the outputs to the driver.")


class BroadcastSection(TaskSection):
    """One object to many tasks: ``ref = ray.put(x); [f.remote(ref) for _ in ...]``."""

    object_bytes: Bytes = Field(description="Of the object, such as 1GiB.")
    receivers: Few = Field(description="Tasks that take it.")
    nodes: list[Limit] = Field(
        default_factory=list, description="A receiver on each in turn; by default, SPREAD."
    )
    fan_out: Limit = Field(0, description="Receivers that wait for the same one; 0: none waits.")
    scheduling_strategy: Literal["DEFAULT", "SPREAD"] = Field(
        "SPREAD", description="As in @ray.remote."
    )


class ArrivalsSection(TaskSection):
    """Tasks that come whether or not earlier ones have ended: Poisson, or a trace of times."""

    rate: PerSecond | None = Field(None, description="Of Poisson arrivals, such as 20/s.")
    lasting: Seconds | None = Field(None, description="Of Poisson arrivals: for how long.")
    times: list[Seconds] | str | None = Field(
        None,
        description="Of a trace: times from the start, in order, or a file with one number of "
        "seconds a line.",
    )
    arg_bytes: Bytes = Field(0, description="By value with each task.")
    return_bytes: Bytes = Field(0, description="Of each result.")

    @model_validator(mode="after")
    def _poisson_or_trace(self) -> ArrivalsSection:
        poisson = self.rate is not None and self.lasting is not None
        half = (self.rate is None) != (self.lasting is None)
        if half or poisson == (self.times is not None):
            raise ValueError("give rate and lasting (Poisson), or times (a trace)")
        return self


class TaskGraphSection(Section):
    """Tasks with data dependencies."""

    file: str = Field(
        min_length=1,
        description="A directed graph as networkx writes it (node_link_data, JSON). Attributes of "
        "nodes: duration_s, and if wanted num_cpus, num_gpus, memory_bytes, output_bytes, name, "
        "uses.",
    )
    keep_references: bool = Field(False, description="The driver holds every output to the end.")
    fetch: bool = Field(True, description="Bring the last outputs to the driver.")


class ReplaySection(Section):
    """A recorded program again: what ``ray timeline`` wrote."""

    timeline: str = Field(min_length=1, description="The file.")
    num_cpus: dict[str, Quantity] = Field(
        default_factory=dict, description="By name of task, where it is not 1."
    )
    return_bytes: dict[str, Bytes] = Field(
        default_factory=dict, description="By name of task, where it returns something."
    )
    uses: UsesKey = Field("time", description="As recorded (time), or on shared cores.")
    speed: Annotated[float, Field(gt=0, le=1000)] = Field(
        1.0, description="Of the cluster's cores over those recorded."
    )
    at_once: bool = Field(False, description="The driver submits as fast as it can.")


class WorkloadSection(Section):
    """A generated program; one of the kinds below."""

    task_bag: TaskBagSection | None = Field(None, description="Independent tasks.")
    task_graph: TaskGraphSection | None = Field(None, description="Tasks with dependencies.")
    actor_pool: ActorPoolSection | None = Field(None, description="Calls shared by actors.")
    shuffle: ShuffleSection | None = Field(None, description="All to all.")
    broadcast: BroadcastSection | None = Field(None, description="One object to many tasks.")
    arrivals: ArrivalsSection | None = Field(None, description="An open loop of tasks.")
    replay: ReplaySection | None = Field(None, description="A recorded timeline again.")

    @property
    def kind(self) -> str:
        """The one that was given."""
        return _given(self)[0]

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadSection:
        return _exactly_one(self, "workload")


def _given(section: Section) -> list[str]:
    return [name for name in type(section).model_fields if getattr(section, name) is not None]


def _exactly_one(section: S, what: str) -> S:
    given = _given(section)
    if len(given) != 1:
        known = ", ".join(type(section).model_fields)
        raise ValueError(f"a {what} is one of {known}; got {' and '.join(given) or 'none'}")
    return section
