"""Engines behind an ingress: who gets a request, and what streaming its tokens back costs.

Real counterpart (ray 2.60): Ray Serve LLM's ``OpenAiIngress`` in front of ``LLMServer`` replicas,
``PowerOfTwoChoicesRequestRouter``, and ``PDProxyServer`` with a NIXL connector. A token passes the
ingress as one message of an asyncio loop, which is the ceiling of many fleets: one process after
another handles each token of every engine, first come first served. Several ingress processes are
one queue that is as many times faster.

Not modelled: prefix-aware routing, retries, bytes of HTTP on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.serving.engine import LLMEngine, Outcome, Request
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    import numpy.typing as npt

    from raysim.kernel.simulation import Simulation

REQUEST_S = 0.020
"""HTTP, routing, tokenizing, and the way back of the first token, of an idle fleet."""
TOKEN_S = 170e-6
"""Of an ingress process per token that it streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressSpec:
    """What stands between clients and engines.

    Parameters
    ----------
    replicas
        Processes; 0: clients talk to engines.
    request_s
        Seconds a request is under way before its engine has it.
    token_s
        Seconds of one process per token.
    """

    replicas: int = 1
    request_s: float = REQUEST_S
    token_s: float = TOKEN_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A request as its client saw it."""

    request: Request
    sent_ns: int
    first_token_ns: int
    finished_ns: int
    preemptions: int = 0
    hit_tokens: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return (self.first_token_ns - self.sent_ns) / NS_PER_S

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first; 0 of a single one."""
        after = self.request.output_tokens - 1
        return (self.finished_ns - self.first_token_ns) / NS_PER_S / after if after else 0.0

    @property
    def seconds(self) -> float:
        """From sending to the last token."""
        return (self.finished_ns - self.sent_ns) / NS_PER_S


class Stream:
    """The queue of tokens before the ingress's processes.

    A queue with one server, fed in batches: the n-th batch has left at ``S_n + max(D_0, max over
    k <= n of (A_k - S_{k-1}))``, with arrivals A and the sums S of service (Lindley's recursion
    unrolled), so that whole stretches of iterations are worked out at once.
    """

    def __init__(self, token_ns: float) -> None:
        self._token_ns = token_ns
        self._engines: list[LLMEngine] = []
        self._left_ns = 0.0
        self.busy_ns = 0.0

    def add(self, engine: LLMEngine) -> None:
        """One more engine streams through it."""
        engine.keep_log()
        self._engines.append(engine)

    def left_ns(self, now_ns: int) -> int:
        """When everything that engines have made until now has passed."""
        made = [e.made_until(now_ns) for e in self._engines]
        at_ns = np.concatenate([m[0] for m in made])
        if len(at_ns):
            tokens = np.concatenate([m[1] for m in made])
            order = np.argsort(at_ns, kind="stable")
            self._pass(at_ns[order], tokens[order])
        return max(now_ns, round(self._left_ns))

    def _pass(self, at_ns: npt.NDArray[np.int64], tokens: npt.NDArray[np.int64]) -> None:
        work = tokens * self._token_ns
        total = np.cumsum(work)
        waits_until = max(self._left_ns, float(np.max(at_ns - (total - work))))
        self._left_ns = float(total[-1]) + waits_until
        self.busy_ns += float(total[-1])


class Fleet:
    """Replicas of an engine, and the way to them.

    Parameters
    ----------
    simulation
        Whose clock.
    ingress
        The way in.
    draws
        A stream: which two replicas are asked how busy they are.
    kv_bytes_per_s
        Between engines that prefill and those that decode.
    """

    def __init__(
        self,
        simulation: Simulation,
        ingress: IngressSpec,
        draws: Any,
        *,
        kv_bytes_per_s: float = 11e9,
    ) -> None:
        self.simulation = simulation
        self.ingress = ingress
        self.engines: list[LLMEngine] = []
        """That decode; all of a request, if nobody else prefills."""
        self.prefill: list[LLMEngine] = []
        self.waiting: list[Callable[[], None]] = []
        """Requests that have come before there is an engine."""
        token_ns = ingress.token_s * NS_PER_S / max(1, ingress.replicas)
        self.stream = Stream(token_ns) if ingress.replicas else None
        self._draws = draws
        self._kv_bytes_per_s = kv_bytes_per_s
        self._sends_until_ns: dict[int, int] = {}

    def add(self, engine: LLMEngine, *, prefills: bool = False) -> None:
        """A replica is ready."""
        if prefills:
            self.prefill.append(engine)
        else:
            self.engines.append(engine)
            if self.stream is not None:
                self.stream.add(engine)
        waiting, self.waiting = self.waiting, []
        for start in waiting:
            start()

    @property
    def load(self) -> int:
        """Requests inside engines, or waiting for one."""
        return sum(e.load for e in (*self.engines, *self.prefill)) + len(self.waiting)

    def submit(self, request: Request, then: Callable[[Served], object]) -> None:
        """A client sends a request; ``then`` when it has the last token.

        Raises
        ------
        InfeasibleError
            It is longer than an engine's cache.
        """
        _Way(self, request, then)

    def choose(self, engines: Sequence[LLMEngine]) -> LLMEngine:
        """The less busy one of two drawn."""
        if len(engines) == 1:
            return engines[0]
        first = int(self._draws.integers(len(engines)))
        second = int(self._draws.integers(len(engines) - 1))
        a, b = engines[first], engines[second + (second >= first)]
        return b if b.load < a.load else a

    def sent_ns(self, engine: LLMEngine, tokens: int) -> int:
        """When keys and values of so many tokens have left an engine, one request after another."""
        size = tokens * engine.capacity.kv_bytes_per_token * engine.settings.tensor_parallel_size
        began = max(self.simulation.now_ns, self._sends_until_ns.get(id(engine), 0))
        over = began + round(size / self._kv_bytes_per_s * NS_PER_S)
        self._sends_until_ns[id(engine)] = over
        return over


class _Way:
    """One request on its way."""

    __slots__ = ("_first_ns", "_fleet", "_request", "_sent_ns", "_then")

    def __init__(self, fleet: Fleet, request: Request, then: Callable[[Served], object]) -> None:
        self._fleet = fleet
        self._request = request
        self._then = then
        self._sent_ns = fleet.simulation.now_ns
        self._first_ns = -1
        fleet.simulation.clock.call_later(round(fleet.ingress.request_s * NS_PER_S), self._in)

    def _in(self, _: object = None) -> None:
        fleet = self._fleet
        if not fleet.engines:
            fleet.waiting.append(self._in)
        elif fleet.prefill:
            engine = fleet.choose(fleet.prefill)
            alone = replace(self._request, output_tokens=1)
            engine.submit(alone, lambda _: self._hand_over(engine))
        else:
            fleet.choose(fleet.engines).submit(self._request, self._made, self._started)

    def _hand_over(self, engine: LLMEngine) -> None:
        computed = self._request.prompt_tokens - 1
        at_ns = self._fleet.sent_ns(engine, computed)
        self._fleet.simulation.clock.call_at(at_ns, self._decode, computed)

    def _decode(self, received: int) -> None:
        request = replace(self._request, received_tokens=received)
        self._fleet.choose(self._fleet.engines).submit(request, self._made, self._started)

    def _passed_ns(self) -> int:
        now_ns, stream = self._fleet.simulation.now_ns, self._fleet.stream
        return now_ns if stream is None else stream.left_ns(now_ns)

    def _started(self) -> None:
        self._first_ns = self._passed_ns()

    def _made(self, outcome: Outcome) -> None:
        at_ns = self._passed_ns()
        served = Served(
            request=self._request, sent_ns=self._sent_ns, first_token_ns=self._first_ns,
            finished_ns=at_ns, preemptions=outcome.preemptions, hit_tokens=outcome.hit_tokens,
        )  # fmt: skip
        self._fleet.simulation.clock.call_at(at_ns, self._then, served)
