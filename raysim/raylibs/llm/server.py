"""A replica: its bundles, its start, its engine.

Real counterpart (ray 2.60): ``LLMServer`` of ``llm/_internal/serve`` with vLLM's engine inside; its
placement group has a bundle per rank and is packed on one node, or on several by pipeline stages.

Not modelled: the death of a replica's node: its requests are lost, and nobody starts it again.
"""

from __future__ import annotations

from typing import Any

from raysim.errors import InfeasibleError
from raysim.raycore.resources import ResourceSet
from raysim.raycore.scripts import (
    Event,
    Script,
    here,
    make_group,
    now,
    sleep,
    spawn,
    wait_for,
    wait_group,
)
from raysim.raycore.tasks import TaskError
from raysim.raylibs.actors import ActorClass
from raysim.raylibs.llm.config import LLMApp
from raysim.serving.build import engine_on
from raysim.serving.capacity import Capacity
from raysim.serving.fleet import Fleet


class Replicas:
    """All replicas of an application, as they come up.

    Parameters
    ----------
    app
        What is served.
    fleet
        Where an engine is added once it is warm.
    """

    def __init__(self, app: LLMApp, fleet: Fleet) -> None:
        self.app = app
        self.fleet = fleet
        self.refusal = ""
        """Why no engine can start; empty if they do."""
        self.settled = Event()
        """All are ready, or none will be."""
        self.ready_ns: list[int] = []
        self.capacity: Capacity | None = None

    def start(self) -> Script:
        """Ask for every replica's bundles; they start as these are placed."""
        app = self.app
        for prefills, count in ((False, app.num_replicas), (True, app.prefill_replicas)):
            for _ in range(count):
                yield spawn(self._replica(prefills))

    def _replica(self, prefills: bool) -> Script:
        app = self.app
        ranks = app.engine.gpus
        bundles = [
            ResourceSet.of({"GPU": 1.0, "CPU": app.cpus if rank == 0 else 0.0})
            for rank in range(ranks)
        ]
        process: Any = yield here()
        largest = max((node.spec.gpu_count for node in process.env.nodes), default=0)
        several = app.engine.pipeline_parallel_size > 1 or ranks > largest
        group = yield make_group(bundles, "PACK" if several else "STRICT_PACK")
        yield wait_group(group)
        server = ActorClass(cls=LLMServer, resources={"GPU": 1.0, "CPU": app.cpus}).in_group(
            group, 0
        )
        handle = yield from server.remote(self, prefills)
        if isinstance(handle, TaskError) or isinstance((yield from handle.ask("check")), TaskError):
            self.refuse("a replica's actor died while it started")

    def refuse(self, why: str) -> None:
        """No engine like this can run here."""
        self.refusal = self.refusal or why
        self.settled.set()

    def ready(self, at_ns: int) -> None:
        """One more takes requests."""
        self.ready_ns.append(at_ns)
        if len(self.ready_ns) == self.app.num_replicas + self.app.prefill_replicas:
            self.settled.set()


class LLMServer:
    """The actor around one engine."""

    def __init__(self, process: Any, replicas: Replicas, prefills: bool) -> None:
        self._replicas = replicas
        self._prefills = prefills
        app = replicas.app
        node = process.env.nodes[process.me.node_id].spec
        try:
            self._engine = engine_on(
                process.env.sim, app.decoder, node, app.engine,
                around=(process.env.topology, process.me.node_id),
            )  # fmt: skip
            replicas.capacity = self._engine.capacity
        except InfeasibleError as error:
            replicas.refuse(str(error))

    def check(self) -> Script:
        """``check_health`` once it is warm; the engine takes requests from then on."""
        replicas = self._replicas
        if replicas.refusal:
            return
        app = replicas.app
        if app.cold_start is not None:
            seconds = app.cold_start.seconds(app.decoder, eager=app.engine.enforce_eager)
            yield sleep(round(seconds * 1e9))
        replicas.fleet.add(self._engine, prefills=self._prefills)
        replicas.ready((yield now()))


def serve(app: LLMApp, draws: Any) -> Script:
    """``serve.run`` of the application: its ``Replicas``, once all are ready or none will be."""
    process: Any = yield here()
    fleet = Fleet(process.env.sim, app.ingress, draws, kv_bytes_per_s=app.kv_bytes_per_s)
    replicas = Replicas(app, fleet)
    yield from replicas.start()
    yield wait_for(replicas.settled)
    return replicas
