"""Candidates for a call: by locality or by loaded model; two of them at random.

Real counterpart: ``LocalityMixin``, ``MultiplexMixin`` of ``_private/request_router/
request_router.py``, ``pow_2_router.py`` (ray 2.60).

Not modelled: preference for the same availability zone; the LLM library's prefix-aware router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.raylibs.serve.request import Call
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.replica import Replica
    from raysim.raylibs.serve.router import Router


class Choice(NamedTuple):
    """At most two candidates, and whether a failure with them counts for the back-off."""

    replicas: list[Replica]
    back_off: bool


class Candidates:
    """The pools one router draws from."""

    __slots__ = (
        "_fallen_back", "_local", "_prefer_local", "_rng", "_router", "_uniform",
    )  # fmt: skip

    def __init__(self, router: Router, rng: Any, prefer_local_node: bool) -> None:
        self._router = router
        self._rng = rng
        self._prefer_local = prefer_local_node
        self._local: list[Replica] = []
        self._fallen_back: dict[str, None] = {}
        self._uniform: list[float] = []

    def update(self) -> None:
        """The router's replicas have changed."""
        router = self._router
        node_id = router.process.me.node_id
        self._local = [r for r in router.replicas.values() if r.process.me.node_id == node_id]

    def choose(self, call: Call) -> Choice:
        """One iteration of the router's procedure."""
        kind = self._router.config.request_router
        pool, back_off = (
            self._by_model(call) if call.model_id and kind == "power_of_two"
            else self._by_locality(call)
        )  # fmt: skip
        if kind == "random":
            return Choice([pool[self._index(len(pool))]], back_off)
        if kind == "least_connections":
            running = self._router.running
            return Choice([min(pool, key=lambda r: running.get(r.replica_id, 0))], back_off)
        return Choice(self._two(pool), back_off)

    def _by_locality(self, call: Call) -> tuple[list[Replica], bool]:
        if self._prefer_local and not call.tried_node and self._local:
            call.tried_node = True
            return self._local, False
        return list(self._router.replicas.values()), True

    def _by_model(self, call: Call) -> tuple[list[Replica], bool]:
        """Those that have it, while the matching lasts; then those with the fewest; then all."""
        router = self._router
        now_ns = router.process.now_ns
        if call.matching_since_ns < 0:
            call.matching_since_ns = now_ns
        base_s = router.defaults.multiplexed_matching_timeout_s
        timeout_ns = to_ns(base_s * (1.0 + self._draw()))
        everyone = list(router.replicas.values())
        if now_ns - call.matching_since_ns < timeout_ns:
            pool = [r for r in everyone if call.model_id in r.announced_models]
            fallen = call.model_id in self._fallen_back
            if (not pool and not fallen) or call.tried_first:
                pool = _fewest_models(everyone)
                self._fallen_back[call.model_id] = None
            elif pool:
                self._fallen_back.pop(call.model_id, None)
            call.tried_first = True
        elif not call.tried_fewest:
            call.tried_fewest = True
            pool = _fewest_models(everyone)
        else:
            pool = everyone
        return pool, True

    def _two(self, pool: Sequence[Replica]) -> list[Replica]:
        n = len(pool)
        if n < 2:
            return list(pool)
        i = self._index(n)
        j = self._index(n - 1)
        return [pool[i], pool[j + 1 if j >= i else j]]

    def _index(self, n: int) -> int:
        return int(self._draw() * n)

    def _draw(self) -> float:
        if not self._uniform:
            self._uniform = self._rng.random(1000).tolist()
        return self._uniform.pop()


def _fewest_models(replicas: Sequence[Replica]) -> list[Replica]:
    fewest = min((len(r.announced_models) for r in replicas), default=0)
    return [r for r in replicas if len(r.announced_models) == fewest]
