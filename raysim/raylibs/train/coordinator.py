"""Who may use what of the cluster: the ``AutoscalingCoordinator``.

Real counterpart: ``ray/data/_internal/cluster_autoscaler/default_autoscaling_coordinator.py``: one
detached actor per cluster. Every run asks it for as many bundles as it could use at most; it asks
the autoscaler for all of them together and divides the nodes that live among those who asked, the
first first. Its view of the nodes is as old as its last tick, at most 20 s: a node that has just
died, or drains, is still counted.

Not modelled: requests that expire (their controllers cancel them), subclusters, remaining shares.
"""

from __future__ import annotations

from collections.abc import Mapping

from raysim.raycore.process import CoreProcess
from raysim.raycore.protocol import Nodes, RequestClusterResourceConstraint, WatchNodes
from raysim.raycore.resources import ResourceSet, quantities
from raysim.raycore.scripts import Event, Script, ask_gcs, now, sleep, spawn, wait_for
from raysim.raycore.tasks import ActorOptions
from raysim.raylibs.actors import ActorClass
from raysim.raylibs.train.polls import Polls

Resources = Mapping[str, float]


class AutoscalingCoordinator:
    """One per cluster."""

    def __init__(self, process: CoreProcess, tick_ns: int) -> None:
        self._ticks = Polls(process.now_ns + tick_ns, tick_ns)
        self._requests: dict[str, list[Resources]] = {}
        """By run, in the order they first asked."""
        self._nodes: list[dict[str, float]] | None = None
        """As of the last tick."""
        self._reserved: dict[str, list[dict[str, float]]] = {}
        self._changed = Event()

    def request_resources(self, requester: str, bundles: list[Resources]) -> Script:
        """As many bundles as a run could use."""
        if self._nodes is None:
            nodes = yield ask_gcs(WatchNodes())
            self._see(nodes)
            yield spawn(self._watch(nodes.version))
        if self._requests.get(requester) != bundles:
            self._requests[requester] = bundles
            self._reserve()
            yield from self._send()

    def cancel_request(self, requester: str) -> Script:
        """A run has ended."""
        if self._requests.pop(requester, None) is not None:
            self._reserve()
            yield from self._send()

    def get_reserved_resources(self, requester: str) -> list[dict[str, float]]:
        """Of each node, what a run may use."""
        return self._reserved.get(requester, [])

    def wait_for_change(self, requester: str, known: list[dict[str, float]]) -> Script:
        """Answered when it is something else: stands for asking again and again."""
        while self._reserved.get(requester, []) == known:
            yield wait_for(self._changed)

    def _watch(self, seen: int) -> Script:
        while True:
            nodes = yield ask_gcs(WatchNodes(seen))
            if not isinstance(nodes, Nodes):
                return
            at_ns = yield now()
            yield sleep(self._ticks.at(at_ns) - at_ns)
            nodes = yield ask_gcs(WatchNodes())
            if not isinstance(nodes, Nodes):
                return
            seen = nodes.version
            self._see(nodes)
            self._reserve()

    def _see(self, nodes: Nodes) -> None:
        self._nodes = [
            quantities(row.resources)
            for row in nodes.rows
            if not row.is_head or row.resources.get("CPU") or row.resources.get("GPU")
        ]

    def _reserve(self) -> None:
        free = [dict(node) for node in self._nodes or []]
        self._reserved = {}
        for requester, bundles in self._requests.items():
            held: list[dict[str, float]] = [{} for _ in free]
            first = 0
            for bundle in bundles:
                at = next((i for i in range(first, len(free)) if _fits(bundle, free[i])), None)
                if at is None:
                    break  # all bundles are alike
                first = at
                for name, n in bundle.items():
                    free[at][name] -= n
                    held[at][name] = held[at].get(name, 0.0) + n
            self._reserved[requester] = held
        changed, self._changed = self._changed, Event()
        changed.set()

    def _send(self) -> Script:
        bundles = [ResourceSet.of(dict(b)) for asked in self._requests.values() for b in asked]
        yield ask_gcs(RequestClusterResourceConstraint(tuple(bundles)))


def _fits(bundle: Resources, node: Resources) -> bool:
    return all(node.get(name, 0.0) >= n for name, n in bundle.items())


COORDINATOR = ActorClass(
    cls=AutoscalingCoordinator,
    actor=ActorOptions(
        name="AutoscalingCoordinator", namespace="AutoscalingCoordinator", detached=True,
        get_if_exists=True, max_concurrency=1000,
    ),
)  # fmt: skip
