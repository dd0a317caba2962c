"""A ``workload`` section as a spec of ``workloads.ray``, with the files it points to read.

What a spec finds wrong with itself is said at the key of the scenario, or at the line of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from raysim.errors import Location, Problem, ScenarioError
from raysim.scenario.documents import Document, KeyPath, one_line, printable, read_text
from raysim.scenario.hjson_text import parse_hjson
from raysim.scenario.schema_workload import (
    ActorPoolSection,
    ArrivalsSection,
    BroadcastSection,
    DurationSection,
    ReplaySection,
    ShapeSection,
    ShuffleSection,
    TaskBagSection,
    TaskGraphSection,
    TaskSection,
    WorkloadSection,
)
from raysim.workloads.ray.actor_pool import ActorPool
from raysim.workloads.ray.arrivals import Arrivals, Poisson, Times
from raysim.workloads.ray.broadcast import Broadcast
from raysim.workloads.ray.dag import TaskGraph
from raysim.workloads.ray.durations import (
    Constant,
    Duration,
    Empirical,
    Exponential,
    LogNormal,
    Uniform,
)
from raysim.workloads.ray.replay import Replay
from raysim.workloads.ray.shapes import TaskShape
from raysim.workloads.ray.shuffle import Shuffle
from raysim.workloads.ray.start import Workload
from raysim.workloads.ray.task_bag import TaskBag
from raysim.workloads.ray.timeline_file import read_timeline

if TYPE_CHECKING:
    import networkx as nx

WORKLOAD: KeyPath = ("jobs", 0, "workload")
MAX_FILE_BYTES = 2**30
_KEYS = {"memory_bytes": "memory", "init_s": "init", "duration_s": "lasting"}
"""Of specs, where the scenario's name is another."""
T = TypeVar("T")


def files_of(section: WorkloadSection, folder: Path) -> dict[KeyPath, Path]:
    """The files it points to, by where it does."""
    named: dict[KeyPath, object] = {
        ("task_graph", "file"): section.task_graph and section.task_graph.file,
        ("arrivals", "times"): section.arrivals and section.arrivals.times,
        ("replay", "timeline"): section.replay and section.replay.timeline,
    }
    return {
        (*WORKLOAD, *path): folder / value for path, value in named.items()
        if isinstance(value, str)
    }  # fmt: skip


def workload_of(
    section: WorkloadSection, files: Mapping[KeyPath, Path], document: Document
) -> Workload:
    """The spec.

    Parameters
    ----------
    section
        Checked by its schema.
    files
        What ``files_of`` found.
    document
        The scenario, to say where something is wrong.

    Raises
    ------
    ScenarioError
        Numbers contradict each other, or a file is absent or wrong; one problem each.
    """
    return _Making(document, (*WORKLOAD, section.kind), files).make(getattr(section, section.kind))


class _Making:
    """One section on its way to a spec."""

    def __init__(self, document: Document, at: KeyPath, files: Mapping[KeyPath, Path]) -> None:
        self.document = document
        self.at = at
        self.files = files

    def make(self, section: Any) -> Workload:
        """By the kind of the section."""
        makers: dict[type, Callable[[Any], Workload]] = {
            TaskBagSection: self.task_bag, TaskGraphSection: self.task_graph,
            ActorPoolSection: self.actor_pool, ShuffleSection: self.shuffle,
            BroadcastSection: self.broadcast, ArrivalsSection: self.arrivals,
            ReplaySection: self.replay,
        }  # fmt: skip
        return makers[type(section)](section)

    def placed(self, make: Callable[[], T], *below: str) -> T:
        """What ``make`` makes; what it finds wrong is said at the scenario's keys."""
        try:
            return make()
        except ScenarioError as error:
            raise ScenarioError(
                [self.document.problem(self.key(p, below), p.message) for p in error.problems]
            ) from None

    def key(self, problem: Problem, below: tuple[str, ...]) -> KeyPath:
        """Where a spec's key stands in the scenario: after the spec's name, renamed."""
        first, _, rest = (problem.key or "").partition(".")[2].partition(".")
        steps = [_KEYS.get(first, first), rest]
        return (*self.at, *below, *(step for step in steps if step))

    # shapes

    def shape(self, said: ShapeSection, name: str, *below: str) -> TaskShape:
        """Of a section of tasks; ``name`` if it says none."""
        runs = self.duration(said.duration, *below, "duration")
        more: dict[str, Any] = {}
        if isinstance(said, TaskSection):
            more = {"max_retries": said.max_retries, "max_calls": said.max_calls}
        return self.placed(
            lambda: TaskShape(
                name=said.name or name, runs=runs, uses=said.uses, num_cpus=said.num_cpus,
                num_gpus=said.num_gpus, memory_bytes=said.memory, resources=said.resources,
                strategy=said.scheduling_strategy, **more,
            ),
            *below,
        )  # fmt: skip

    def duration(self, said: DurationSection, *below: str) -> Duration:
        """The distribution."""

        def make() -> Duration:
            if said.uniform is not None:
                return Uniform(low_s=said.uniform.low, high_s=said.uniform.high)
            if said.exponential is not None:
                return Exponential(mean_s=said.exponential)
            if said.lognormal is not None:
                return LogNormal(median_s=said.lognormal.median, sigma=said.lognormal.sigma)
            if said.empirical is not None:
                return Empirical(seconds=tuple(said.empirical))
            assert said.constant is not None, "the schema lets one through"
            return Constant(seconds=said.constant)

        try:
            return make()
        except ScenarioError as error:
            place = (*self.at, *below)
            raise ScenarioError(
                [self.document.problem(place, f"{p.key}: {p.message}") for p in error.problems]
            ) from None

    # kinds

    def task_bag(self, said: TaskBagSection) -> TaskBag:
        """Independent tasks."""
        shape = self.shape(said, "task")
        return self.placed(
            lambda: TaskBag(
                tasks=said.tasks, shape=shape, arg_bytes=said.arg_bytes,
                return_bytes=said.return_bytes, max_in_flight=said.max_in_flight,
                submitters=said.submitters, collect=said.collect,
            )
        )  # fmt: skip

    def actor_pool(self, said: ActorPoolSection) -> ActorPool:
        """Calls shared by actors."""
        shape = self.shape(said, "Actor")
        return self.placed(
            lambda: ActorPool(
                actors=said.actors, calls=said.calls, shape=shape, reserve_cpu=said.reserve_cpu,
                init_s=said.init, arg_bytes=said.arg_bytes, return_bytes=said.return_bytes,
                in_flight=said.in_flight, max_concurrency=said.max_concurrency,
                is_async=said.is_async, max_restarts=said.max_restarts,
                max_task_retries=said.max_task_retries,
            )
        )  # fmt: skip

    def shuffle(self, said: ShuffleSection) -> Shuffle:
        """All to all."""
        maps = self.shape(said.map, "map", "map")
        reduces = self.shape(said.reduce, "reduce", "reduce")
        return self.placed(
            lambda: Shuffle(
                mappers=said.mappers, reducers=said.reducers, total_bytes=said.total_bytes,
                map_shape=maps, reduce_shape=reduces, output_bytes=said.output_bytes,
                fetch=said.fetch,
            )
        )  # fmt: skip

    def broadcast(self, said: BroadcastSection) -> Broadcast:
        """One to all."""
        shape = self.shape(said, "receive")
        return self.placed(
            lambda: Broadcast(
                object_bytes=said.object_bytes, receivers=said.receivers, nodes=tuple(said.nodes),
                shape=shape, fan_out=said.fan_out,
            )
        )  # fmt: skip

    def arrivals(self, said: ArrivalsSection) -> Arrivals:
        """An open loop."""
        shape = self.shape(said, "request")
        times: Poisson | Times
        if said.rate is not None and said.lasting is not None:
            rate_per_s, duration_s = said.rate, said.lasting
            times = self.placed(lambda: Poisson(rate_per_s=rate_per_s, duration_s=duration_s))
        else:
            trace = said.times or []
            if isinstance(trace, str):
                trace = list(self.trace(self.files[*self.at, "times"]))
            seconds = tuple(trace)
            times = self.placed(lambda: Times(seconds=seconds), "times")
        return self.placed(
            lambda: Arrivals(
                times=times, shape=shape, arg_bytes=said.arg_bytes, return_bytes=said.return_bytes
            )
        )

    def trace(self, file: Path) -> Iterator[float]:
        """Seconds, one number a line; what follows a comma is not looked at."""
        for number, line in enumerate(self.text(file, "times").splitlines(), 1):
            if not line.strip():
                continue
            try:
                yield float(line.partition(",")[0])
            except ValueError:
                where = Location(file=printable(str(file)), line=number)
                message = f"expected a number of seconds, got {line.strip()[:40]!r}"
                raise ScenarioError(Problem(message=printable(message), where=where)) from None

    def replay(self, said: ReplaySection) -> Replay:
        """A timeline again."""
        file = self.files[*self.at, "timeline"]
        try:
            tasks = tuple(read_timeline(file))
        except ScenarioError as error:
            messages = [printable(p.message) for p in error.problems]
            at = (*self.at, "timeline")
            raise ScenarioError([self.document.problem(at, m) for m in messages]) from None
        return self.placed(
            lambda: Replay(
                tasks=tasks, num_cpus=said.num_cpus, return_bytes=said.return_bytes,
                uses=said.uses, speed=said.speed, at_once=said.at_once,
            )
        )  # fmt: skip

    def task_graph(self, said: TaskGraphSection) -> TaskGraph:
        """Tasks with dependencies, from a file."""
        file = self.files[*self.at, "file"]
        text = self.text(file, "file")
        graph = self.graph(file, text)
        try:
            return TaskGraph(graph=graph, keep_references=said.keep_references, fetch=said.fetch)
        except ScenarioError as error:
            raise ScenarioError(list(_in_the_file(error, graph, file, text))) from None

    def graph(self, file: Path, text: str) -> nx.DiGraph[Any]:
        """Of the form that networkx calls node-link; parallel edges are one."""
        import networkx as nx

        where = Location(file=printable(str(file)))
        try:
            data = json.loads(text)
            found: nx.DiGraph[Any] = nx.DiGraph()
            found.add_nodes_from((node.pop("id"), node) for node in data["nodes"])
            pairs = [
                (e["source"], e["target"]) for e in data["links" if "links" in data else "edges"]
            ]
            unknown = next((end for pair in pairs for end in pair if end not in found), None)
            if unknown is None and data.get("directed", True):
                found.add_edges_from(pairs)
                return found
            message = f"an edge names {unknown!r}, which is not among the nodes"
            message = "must be directed" if unknown is None else message
        except json.JSONDecodeError as error:
            where = Location(file=where.file, line=error.lineno, column=error.colno)
            message = f"not JSON: {error.msg}"
        except (KeyError, TypeError, AttributeError) as error:
            message = (
                "expected a graph as networkx.node_link_data gives it, with nodes (each with an "
                f"id) and edges (each with source and target): {type(error).__name__} {error}"
            )
        raise ScenarioError(Problem(message=one_line(message), where=where))

    def text(self, file: Path, key: str) -> str:
        """Of a file; one that cannot be read is said where the scenario names it."""
        try:
            return read_text(file, printable(str(file)), MAX_FILE_BYTES)[0]
        except ScenarioError as error:
            if error.problems[0].where is not None and error.problems[0].where.line is not None:
                raise
            message = f"{file}: {error.problems[0].message}"
            raise ScenarioError(self.document.problem((*self.at, key), message)) from None


def _in_the_file(
    error: ScenarioError, graph: nx.DiGraph[Any], file: Path, text: str
) -> Iterator[Problem]:
    """What is wrong with a graph, at the lines of its nodes."""
    shown = printable(str(file))
    marks = parse_hjson(text, shown).marks
    numbers = {repr(node): index for index, node in enumerate(graph)}
    for problem in error.problems:
        rest = (problem.key or "").removeprefix("graph.")
        name = next((n for n in numbers if rest == n or rest.startswith(f"{n}.")), "")
        place: KeyPath = ("nodes", numbers[name]) if name else ()
        attribute = rest.removeprefix(name).lstrip(".")
        mark = marks.get((*place, attribute)) or marks.get(place)
        line, column = mark.value if mark is not None else (1, 1)
        said = f"{rest}: {problem.message}" if name else problem.message
        yield Problem(message=printable(said), where=Location(file=shown, line=line, column=column))
