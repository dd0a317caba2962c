"""vLLM in a program's process: an engine of ``serving`` on the GPUs of the process's node.

Real counterpart: ``vllm.AsyncLLMEngine`` as ``llm/_internal`` of ray 2.60 starts it. How long an
answer would be is the model's to say: it is as long as the request allows where that is said to be
used up (``ignore_eos``, ``min_tokens``), and at most ``ANSWER_TOKENS`` else.

Not modelled: pooling (embeddings, scores), stop strings, images.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from raysim.errors import InfeasibleError, ScenarioError
from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import this_core, this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.llm.known import config_of, longest_of
from raysim.rayapi.llm.summary import engines_of
from raysim.rayapi.llm.texts import counter
from raysim.rayapi.standins.configs import by_name
from raysim.raycore.ids import NodeID
from raysim.raylibs.llm.config import ColdStart
from raysim.serving.build import engine_on
from raysim.serving.decoder import read_decoder
from raysim.serving.engine import Request, Served
from raysim.serving.fleet import KV_BYTES_PER_S
from raysim.serving.lora import adapter_bytes
from raysim.serving.settings import EngineSettings, engine_settings
from raysim.units import NS_PER_S

ANSWER_TOKENS = 338
"""Of a chat's mean answer: ShareGPT in the vLLM paper (Kwon et al., SOSP 2023, figure 11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Of ``SamplingParams``, what says how long an answer is."""

    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False

    def output_tokens(self, room: int) -> int:
        """Of a request that leaves so many before the model's longest sequence."""
        most = min(room, self.max_tokens or room)
        return most if self.ignore_eos else min(most, max(ANSWER_TOKENS, self.min_tokens))


def _config_of(source: str) -> Mapping[str, Any]:
    """Of the models served most, or of all that stand-ins know.

    Raises
    ------
    ValueError
        Nobody knows one.
    """
    try:
        return config_of(source)
    except ValueError:
        found = by_name(source)
        if found is None:
            raise
        return found


class Model:
    """What a program named, and the engine that it asks for.

    Parameters
    ----------
    source
        A folder, or a name of the hub.
    engine_kwargs
        vLLM's.

    Raises
    ------
    ValueError
        No config is found, the family cannot be served, or an argument is unknown.
    """

    def __init__(self, source: str, engine_kwargs: Mapping[str, Any]) -> None:
        config = _config_of(source)
        try:
            engine, _ = engine_settings(engine_kwargs)
            self.decoder = read_decoder(config, quantization=engine.quantization)
        except ScenarioError as error:
            raise ValueError(str(error)) from None
        self.source = source
        self.count = counter(source)
        self.engine: EngineSettings = replace(
            engine, max_model_len=engine.max_model_len or longest_of(config)
        )


class Engine:
    """One engine in the process that makes it.

    Parameters
    ----------
    model
        What it serves.
    role
        Of engines that do a part of it, as reports say it.
    on
        The node of its first GPU; None: its process's own.

    Raises
    ------
    RuntimeError
        The node has no GPU, as vLLM says it.
    ValueError
        The model does not fit.
    """

    def __init__(self, model: Model, role: str = "", on: NodeID | None = None) -> None:
        fiber = this_fiber()
        session, core = fiber.process.session, this_core(fiber)
        on = core.me.node_id if on is None else on
        node = session.env.nodes[on].spec
        if node.gpu is None:
            raise RuntimeError("Failed to infer device type: the replica's node has no GPU.")
        fiber.process.priced = True
        self.model = model
        self.name = f"{role}{model.source}"
        self._sends_until_ns = 0
        try:
            self.runs = engine_on(
                session.sim, model.decoder, node, model.engine,
                around=(session.env.topology, on),
            )  # fmt: skip
        except InfeasibleError as error:
            raise ValueError(str(error)) from None
        self.settings = self.runs.settings
        self.outcomes: list[Served] = []
        """Of requests that have their last token."""
        engines_of(session).add(self)

    def start_s(self) -> float:
        """Until it takes requests: weights, compilation, graphs."""
        return ColdStart().seconds(self.model.decoder, eager=self.settings.enforce_eager)

    @property
    def adapter_bytes(self) -> float:
        """Of a LoRA adapter's file."""
        return adapter_bytes(self.model.decoder, self.settings.max_lora_rank)

    def wants_adapters(self) -> None:
        """A request names one.

        Raises
        ------
        ValueError
            The engine takes none.
        """
        if not self.settings.enable_lora:
            raise ValueError("Failed to load lora model: engine_kwargs lack enable_lora=True")

    def room(self, prompt_tokens: int) -> int:
        """Tokens that an answer may have."""
        return (self.settings.max_model_len or 0) - prompt_tokens

    def request(
        self, prompt_tokens: int, output_tokens: int, prefix: Hashable, prefix_tokens: int,
        received_tokens: int = 0, adapter: str = "",
    ) -> Request:  # fmt: skip
        """Of a prompt that begins as others of its adapter, or that another engine has computed."""
        shared = min(prefix_tokens, prompt_tokens)
        return Request(
            prompt_tokens=prompt_tokens, output_tokens=output_tokens,
            received_tokens=received_tokens, prefix=(adapter, prefix) if shared else None,
            prefix_tokens=shared, adapter=adapter or None,
        )  # fmt: skip

    async def send(self, tokens: int) -> None:
        """Keys and values of so many tokens to another engine, one request after another."""
        runs = self.runs
        size_bytes = tokens * runs.capacity.kv_bytes_per_token * self.settings.gpus
        now_ns = fiber_ns(this_fiber())
        began_ns = max(now_ns, self._sends_until_ns)
        self._sends_until_ns = began_ns + round(size_bytes / KV_BYTES_PER_S * NS_PER_S)
        await asyncio_loop.sleep((self._sends_until_ns - now_ns) / NS_PER_S)

    async def generate(self, request: Request) -> Served:
        """All of an answer; who is interrupted leaves the engine."""
        ended: Any = asyncio_loop.new_future()
        sequence = self.runs.submit(request, partial(self._made, ended))
        try:
            outcome: Served = await ended
        except asyncio_loop.CancelledError:
            self.runs.abort(sequence)
            raise
        return outcome

    def _made(self, ended: Any, outcome: Served) -> None:
        if not ended.cancelled():  # else whoever asked has left
            self.outcomes.append(outcome)
        asyncio_loop.set_result(ended, outcome)

    async def stream(self, request: Request, interval_s: float) -> AsyncIterator[int]:
        """Tokens that there are so far, looked at as ``Batcher`` does; 0 s: each by itself."""
        ended: Any = asyncio_loop.new_future()
        began: Any = asyncio_loop.new_future()
        sequence = self.runs.submit(
            request, partial(self._made, ended),
            lambda: asyncio_loop.set_result(began, None),
        )  # fmt: skip
        try:
            if not interval_s:
                await began
            async for made in self._looks(request, sequence, ended, interval_s):
                yield made
        finally:
            if ended.cancel():
                self.runs.abort(sequence)

    async def _looks(
        self, request: Request, sequence: Any, ended: Any, interval_s: float
    ) -> AsyncIterator[int]:
        made = 0
        while made < request.output_tokens:
            now = request.output_tokens if ended.done() else self.runs.tokens_of(sequence)
            if now > made:
                made = now
                yield made
                continue
            with suppress(asyncio_loop.TimeoutError_):
                wait_s = interval_s or self._next_s()
                await asyncio_loop.wait_for(asyncio_loop.shielded(ended), wait_s)

    def _next_s(self) -> float:
        """Until the iteration under way ends."""
        fiber = this_fiber()
        fiber.settle()
        return (self.runs.next_ns - self.runs.simulation.now_ns) / NS_PER_S
