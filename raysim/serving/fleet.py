"""Engines behind an ingress: who gets a request, and what streaming its tokens back costs.

Real counterpart (ray 2.60): Ray Serve LLM's ``OpenAiIngress`` in front of ``LLMServer`` replicas,
``PowerOfTwoChoicesRequestRouter``, and ``PDProxyServer`` with a NIXL connector. A token passes the
ingress as one message of an asyncio loop, which is the ceiling of many fleets: it turns from stream
to stream. Several ingress processes are one that is as many times faster.

Not modelled: prefix-aware routing, retries, bytes of HTTP on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Any

from raysim.serving.engine import LLMEngine, Request, Served
from raysim.units import NS_PER_S

if TYPE_CHECKING:
    from raysim.kernel.clock import Handle
    from raysim.kernel.simulation import Simulation

REQUEST_S = 0.0192
"""HTTP, routing, tokenizing, and the way back of the first token, of an idle fleet."""
TOKENIZE_TOKEN_S = 3.6e-6
"""Of a replica's process per token of the prompt: text into tokens."""
PARSE_TOKEN_S = 3.95e-6
"""Of an ingress process per token of the prompt: the request's JSON, read and written again."""
TOKEN_S = 125e-6
"""Of an ingress process per token that it streams."""
KV_BYTES_PER_S = 11e9
"""Keys and values from one engine to another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressSpec:
    """What stands between clients and engines.

    Parameters
    ----------
    replicas
        Processes; 0: clients talk to engines.
    request_s
        Seconds a request is under way before its engine has it.
    tokenize_token_s
        The same per token of the prompt: the replica's process makes tokens of text.
    parse_token_s
        Seconds of one ingress process per token of the prompt, during which it does nothing else.
    token_s
        Seconds of one process per token.
    render_s
        Seconds of the server's process per chat, for its template. Its loop goes on with a request
        only when those that came meanwhile are rendered as well.
    """

    replicas: int = 1
    request_s: float = REQUEST_S
    tokenize_token_s: float = TOKENIZE_TOKEN_S
    parse_token_s: float = PARSE_TOKEN_S
    token_s: float = TOKEN_S
    render_s: float = 0.0


RENDER_2025_S = 7e-3
"""vLLM of 2025 looked through the template again for each chat: a thousand waited for 6 to 8 s
before the first began (its pull request 20065, which mended one of two such places)."""
SERVE_2025 = IngressSpec(token_s=169e-6)
"""Ray Serve of 2025, whose streams took longer."""


class Stream:
    """An ingress's processes as they stream: every open stream gets an equal share of them.

    A stream that began when each had been served V tokens has passed its n-th when V has grown by
    n, and no sooner than its engine made it. V grows by ``1 / (streams * token_s)`` per second.

    Parameters
    ----------
    token_s
        Seconds per token, of all processes together.
    """

    def __init__(self, simulation: Simulation, token_s: float) -> None:
        self._simulation = simulation
        self._token_ns = token_s * NS_PER_S
        self._open = 0
        self._each = 0.0
        """Tokens that a stream open from the beginning would have been served."""
        self._at_ns = self._blocked_ns = 0
        self._drains: list[tuple[float, int, Callable[[int], object]]] = []
        """Made but not passed on: until when (in ``_each``), a number, and whom to tell."""
        self._made = 0
        self._event: Handle | None = None

    def parse(self, seconds: float) -> int:
        """A prompt is read in one piece, and no stream goes on meanwhile; when that is over."""
        self._advance()
        now_ns = self._simulation.now_ns
        self._blocked_ns = max(now_ns, self._blocked_ns) + round(seconds * NS_PER_S)
        self._plan()
        return self._blocked_ns

    def begin(self) -> tuple[float, int]:
        """A first token is made: since when the stream is served, and when that token is out.

        In the mean, half of the others' tokens of the same moment are ahead of it.
        """
        self._advance()
        self._open += 1
        self._plan()
        return self._each, self._simulation.now_ns + round(self._open / 2 * self._token_ns)

    def end(self, since: float, tokens: int, then: Callable[[int], object]) -> None:
        """The last token is made; ``then(t_ns)`` when all are out."""
        self._advance()
        heappush(self._drains, (since + tokens, self._made, then))
        self._made += 1
        self._plan()

    def _advance(self) -> None:
        now_ns = self._simulation.now_ns
        since_ns = max(self._at_ns, self._blocked_ns)
        if self._open and now_ns > since_ns:
            self._each += (now_ns - since_ns) / (self._open * self._token_ns)
        self._at_ns = now_ns

    def _plan(self) -> None:
        if self._event is not None:
            self._simulation.clock.cancel(self._event)
            self._event = None
        if self._drains:
            left = max(0.0, self._drains[0][0] - self._each)
            delay_ns = ceil(left * self._open * self._token_ns)
            delay_ns += max(0, self._blocked_ns - self._simulation.now_ns)
            self._event = self._simulation.clock.call_later(delay_ns, self._out)

    def _out(self, _: object) -> None:
        self._event = None
        self._advance()
        _, _, then = heappop(self._drains)
        self._open -= 1
        self._plan()
        then(self._simulation.now_ns)


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
        kv_bytes_per_s: float = KV_BYTES_PER_S,
    ) -> None:
        self.simulation = simulation
        self.ingress = ingress
        self.engines: list[LLMEngine] = []
        """That decode; all of a request, if nobody else prefills."""
        self.prefill: list[LLMEngine] = []
        self.waiting: list[Callable[[], None]] = []
        """Requests that have come before there is an engine."""
        self.stream = None
        if ingress.replicas:
            self.stream = Stream(simulation, ingress.token_s / ingress.replicas)
            self.parse_token_s = ingress.parse_token_s / ingress.replicas
        self._draws = draws
        self._kv_bytes_per_s = kv_bytes_per_s
        self._sends_until_ns: dict[int, int] = {}
        self.rendered_ns = 0
        """When all chats that have come are rendered."""

    def add(self, engine: LLMEngine, *, prefills: bool = False) -> None:
        """A replica is ready."""
        if prefills:
            self.prefill.append(engine)
        else:
            self.engines.append(engine)
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
        size = tokens * engine.capacity.kv_bytes_per_token * engine.settings.gpus
        began = max(self.simulation.now_ns, self._sends_until_ns.get(id(engine), 0))
        over = began + round(size / self._kv_bytes_per_s * NS_PER_S)
        self._sends_until_ns[id(engine)] = over
        return over


class _Way:
    """One request on its way."""

    __slots__ = ("_first_ns", "_fleet", "_outcome", "_request", "_sent_ns", "_since", "_then")

    def __init__(self, fleet: Fleet, request: Request, then: Callable[[Served], object]) -> None:
        self._fleet = fleet
        self._request = request
        self._then = then
        self._sent_ns = fleet.simulation.now_ns
        self._first_ns = -1
        self._since = 0.0
        self._outcome: Served | None = None
        clock, ingress = fleet.simulation.clock, fleet.ingress
        way_s = ingress.request_s + ingress.tokenize_token_s * request.prompt_tokens
        parsed_ns = self._sent_ns
        if fleet.stream is not None:
            parsed_ns = fleet.stream.parse(fleet.parse_token_s * request.prompt_tokens)
        if ingress.render_s:
            since_ns = max(self._sent_ns, fleet.rendered_ns)
            fleet.rendered_ns = since_ns + round(ingress.render_s * NS_PER_S)
        clock.call_at(parsed_ns + round(way_s * NS_PER_S), self._in)

    def _in(self, _: object = None) -> None:
        fleet = self._fleet
        if fleet.rendered_ns > fleet.simulation.now_ns:
            fleet.simulation.clock.call_at(fleet.rendered_ns, self._in)
        elif not fleet.engines:
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

    def _started(self) -> None:
        stream = self._fleet.stream
        self._first_ns = self._fleet.simulation.now_ns
        if stream is not None:
            self._since, self._first_ns = stream.begin()

    def _made(self, outcome: Served) -> None:
        self._outcome = outcome
        stream = self._fleet.stream
        if stream is None:
            self._out(self._fleet.simulation.now_ns)
        else:
            stream.end(self._since, self._request.output_tokens, self._out)

    def _out(self, now_ns: int) -> None:
        outcome = self._outcome
        assert outcome is not None, "a stream ends that made nothing"
        first_ns = min(self._first_ns, now_ns)
        self._then(
            replace(outcome, sent_ns=self._sent_ns, first_token_ns=first_ns, finished_ns=now_ns)
        )
