"""The driver: maps side by side over all nodes, then every node's last merges; what it came to.

Real counterpart: ``sort_optimized`` of ``cloudsort/main.py``. Nodes without CPUs (a head) do not
take part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from raysim.hardware.specs import ObjectStorageSpec
from raysim.kernel.rng import Streams
from raysim.raycore.ids import NodeID
from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import GetAllNodeInfo
from raysim.raycore.resources import UNIT
from raysim.raycore.scripts import Script, ask_gcs, drop, get, now, script, spend, submit, wait
from raysim.raycore.tasks import (
    NodeAffinity,
    Payload,
    Ref,
    RemoteFunction,
    TaskError,
    TaskOptions,
)
from raysim.raylibs.actors import ActorClass, ActorHandle
from raysim.raylibs.data.storage import Bucket
from raysim.raylibs.exoshuffle.actors import TASK_BYTES, MergeController, map_task, varied
from raysim.raylibs.exoshuffle.report import METRICS, report_of
from raysim.raylibs.exoshuffle.spec import Costs, Place, Plan
from raysim.raylibs.report import Unit
from raysim.units import NS_PER_S

MAP_CONNECTIONS = 10
"""``map_io_parallelism`` of ``AppConfig``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExoshuffleJob:
    """``exoshuffle`` under a scenario's ``jobs``."""

    plan: Plan
    bucket: ObjectStorageSpec | None = None
    costs: Costs = field(default_factory=Costs)
    played_nodes: int = 4
    """At most; the others, by symmetry, do the same."""
    kind: str = "exoshuffle"

    @property
    def metrics(self) -> Mapping[str, Unit]:
        """As ``LibraryJob``."""
        return METRICS

    def main(self, process: CoreProcess, streams: Streams) -> Script:
        """As ``LibraryJob``."""
        nodes = [
            n for n in (yield ask_gcs(GetAllNodeInfo()))
            if n.state == "ALIVE" and n.resources.get("CPU", 0)
        ]  # fmt: skip
        cpus = min(n.resources["CPU"] for n in nodes) // UNIT
        played = min(len(nodes), self.played_nodes)
        place = Place(
            plan=self.plan, nodes=len(nodes), played=played, cpus=cpus,
            machine=min(
                (process.env.nodes[n.node_id].host.capacity for n in nodes), key=attrgetter("most")
            ),
            storage=self.bucket, costs=self.costs,
        )  # fmt: skip
        bucket = None
        if self.bucket is not None:
            bucket = Bucket(process, self.bucket, connections=MAP_CONNECTIONS)
        sort = _Sort(process, place, [n.node_id for n in nodes[:played]], bucket, streams)
        times = yield from sort.run()
        if isinstance(times, TaskError):
            return times
        return report_of(place, times)


class Times(NamedTuple):
    """Seconds of the stages."""

    start_s: float
    map_s: float
    reduce_s: float


class _Sort:
    def __init__(
        self, process: CoreProcess, place: Place, nodes: list[NodeID], bucket: Bucket | None,
        streams: Streams,
    ) -> None:  # fmt: skip
        self.process = process
        self.place = place
        self.nodes = nodes
        self.bucket = bucket
        self.streams = streams
        self.controllers: list[ActorHandle] = []

    def run(self) -> Script:
        """Its ``Times``, or the TaskError it ended with."""
        at = [(yield now())]
        for node in self.nodes:
            controller = ActorClass(cls=MergeController, strategy=NodeAffinity(node_id=node))
            draws = self.streams(f"exoshuffle/node-{node}")
            handle = yield from controller.remote(self.place, self.bucket, draws)
            yield from handle.ask("start")
            self.controllers.append(handle)
        at.append((yield now()))
        error = yield from self._map()
        at.append((yield now()))
        if error is None:
            error = yield from self._reduce()
        if error is not None:
            return error
        at.append((yield now()))
        return Times(*((b - a) / NS_PER_S for a, b in pairwise(at)))

    def _map(self) -> Script:
        """Every map on the node with the fewest; the first TaskError."""
        function = RemoteFunction(name="mapper", body=script(map_task))
        options = [
            TaskOptions(function=function, strategy=NodeAffinity(node_id=n)) for n in self.nodes
        ]
        place = self.place
        shared = (place, tuple(zip(self.nodes, self.controllers, strict=True)), self.bucket)
        draws = self.streams("exoshuffle/maps")
        in_flight: dict[Ref, int] = {}
        busy = [0] * len(self.nodes)
        more_ns = round((place.stands_for - 1) * self.process.costs.submit_task_ns)
        for _ in range(place.maps):
            if len(in_flight) >= place.map_slots * len(self.nodes):
                error = yield from _one_done(in_flight, busy)
                if error is not None:
                    return error
            node = busy.index(min(busy))
            busy[node] += 1
            work = (*shared, varied(place, draws))
            (ref,) = yield submit(options[node], [Payload(TASK_BYTES, work)])
            yield spend(more_ns)
            in_flight[ref] = node
        values = yield get(list(in_flight))
        yield drop(*in_flight)
        return _error(values)

    def _reduce(self) -> Script:
        refs: list[Ref] = []
        for controller in self.controllers:
            refs += yield controller.call("reduce")
        values = yield get(refs)
        yield drop(*refs)
        return _error(values)


def _one_done(in_flight: dict[Ref, int], busy: list[int]) -> Script:
    """Wait for a map; the TaskError of one that failed."""
    ready = yield wait(list(in_flight), fetch_local=False)
    for ref, done in zip(list(in_flight), ready, strict=True):
        if done:
            busy[in_flight.pop(ref)] -= 1
            values = yield get([ref])
            yield drop(ref)
            if _error(values) is not None:
                return _error(values)
    return None


def _error(values: Any) -> TaskError | None:
    if isinstance(values, TaskError):
        return values
    return next((v for v in values if isinstance(v, TaskError)), None)
