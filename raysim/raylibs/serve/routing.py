"""Candidates for a call: by locality, by loaded model, by prompt prefix; two of them at random.

Real counterpart: ``LocalityMixin``, ``MultiplexMixin`` of ``_private/request_router/
request_router.py``, ``pow_2_router.py``, and the LLM library's prefix-aware router
(``llm/_internal/serve/routing_policies/prefix_aware``), ray 2.60.

Not modelled: eviction of prefixes (off by default in Ray too), KV-event-aware routing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.raylibs.serve.request import Call
from raysim.units import to_ns

if TYPE_CHECKING:
    from raysim.raylibs.serve.replica import Replica
    from raysim.raylibs.serve.router import Router

MATCH_RATE_THRESHOLD = 0.1
"""``match_rate_threshold`` of the prefix-aware router."""


class Choice(NamedTuple):
    """At most two candidates, and whether a failure with them counts for the back-off."""

    replicas: list[Replica]
    back_off: bool


class Candidates:
    """The pools one router draws from."""

    __slots__ = (
        "_fallen_back", "_local", "_prefer_local", "_prefixes", "_rng", "_router", "_same_zone",
        "_uniform", "_zones",
    )  # fmt: skip

    def __init__(
        self,
        router: Router,
        rng: Any,
        prefer_local_node: bool,
        zones: Mapping[int, str] | None,
    ) -> None:
        self._router = router
        self._rng = rng
        self._prefer_local = prefer_local_node
        self._zones = zones or {}
        self._local: list[Replica] = []
        self._same_zone: list[Replica] = []
        self._fallen_back: dict[str, None] = {}
        self._prefixes = PrefixTree()
        self._uniform: list[float] = []

    def update(self) -> None:
        """The router's replicas have changed."""
        router = self._router
        node_id = router.process.me.node_id
        zone = self._zones.get(node_id, "")
        replicas = router.replicas.values()
        self._local = [r for r in replicas if r.process.me.node_id == node_id]
        self._same_zone = [
            r for r in replicas if zone and self._zones.get(r.process.me.node_id) == zone
        ]
        self._prefixes.keep(router.replicas)

    def choose(self, call: Call) -> Choice:
        """One iteration of the router's procedure."""
        kind = self._router.config.request_router
        pool, back_off = (
            self._by_model(call) if call.model_id and kind == "power_of_two"
            else self._by_prefix(call) if kind == "prefix_aware"
            else self._by_locality(call)
        )  # fmt: skip
        if kind == "random":
            return Choice([pool[self._index(len(pool))]], back_off)
        if kind == "least_connections":
            running = self._router.running
            return Choice([min(pool, key=lambda r: running.get(r.replica_id, 0))], back_off)
        return Choice(self._two(pool), back_off)

    def routed(self, call: Call, replica: Replica) -> None:
        """A call went there: its prompt's blocks are cached there from now on."""
        if self._router.config.request_router == "prefix_aware":
            self._prefixes.insert(_prefix_of(call), replica.replica_id)

    def _by_locality(self, call: Call) -> tuple[list[Replica], bool]:
        if self._prefer_local and not call.tried_node and self._local:
            call.tried_node = True
            return self._local, False
        if not call.tried_az and self._same_zone:
            call.tried_az = True
            return self._same_zone, False
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

    def _by_prefix(self, call: Call) -> tuple[list[Replica], bool]:
        """The best match of the prompt from a tenth of it on, else who has seen the least."""
        router = self._router
        prefix = _prefix_of(call)
        if call.tried_first or not prefix:
            return list(router.replicas.values()), True
        call.tried_first = True
        share, matching = self._prefixes.match(prefix)
        if share >= MATCH_RATE_THRESHOLD:
            pool = [router.replicas[k] for k in matching]
        else:
            pool = [router.replicas[k] for k in self._prefixes.smallest(router.replicas)]
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


def _prefix_of(call: Call) -> tuple[int, ...]:
    """Hashes of the prompt's blocks, of requests that have one."""
    return tuple(getattr(call.request.payload, "prefix_blocks", ()))


class PrefixTree:
    """Which replicas have seen which beginnings of prompts, block by block."""

    __slots__ = ("_seen", "_sizes")

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], dict[str, None]] = {}
        self._sizes: dict[str, int] = {}

    def insert(self, prefix: tuple[int, ...], replica_id: str) -> None:
        """A prompt went to a replica."""
        for length in range(1, len(prefix) + 1):
            there = self._seen.setdefault(prefix[:length], {})
            if replica_id not in there:
                there[replica_id] = None
                self._sizes[replica_id] = self._sizes.get(replica_id, 0) + 1

    def match(self, prefix: tuple[int, ...]) -> tuple[float, list[str]]:
        """(Share of the prompt that is known, who knows that much)."""
        best: list[str] = []
        known = 0
        for length in range(1, len(prefix) + 1):
            there = self._seen.get(prefix[:length])
            if not there:
                break
            known, best = length, list(there)
        return (known / len(prefix) if prefix else 0.0), best

    def smallest(self, replicas: Mapping[str, object]) -> list[str]:
        """Those that have seen the least."""
        least = min((self._sizes.get(r, 0) for r in replicas), default=0)
        return [r for r in replicas if self._sizes.get(r, 0) == least]

    def keep(self, replicas: Mapping[str, object]) -> None:
        """Forget replicas that are gone."""
        gone = [r for r in self._sizes if r not in replicas]
        for replica_id in gone:
            del self._sizes[replica_id]
        if gone:
            for prefix in list(self._seen):
                there = self._seen[prefix]
                for replica_id in gone:
                    there.pop(replica_id, None)
                if not there:
                    del self._seen[prefix]
