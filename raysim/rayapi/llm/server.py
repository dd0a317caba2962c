"""``LLMServer``: a deployment's replica with an engine in it.

Real counterpart: ``llm/_internal/serve/core/server/llm_server.py`` (ray 2.60) with vLLM's OpenAI
server behind it. The ranks of an engine hold their bundles; they are no processes of their own.

Not modelled: embeddings, scores, transcriptions, sleeping and pausing engines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import EPOCH_S, fiber_ns
from raysim.rayapi.llm.adapters import loader_of
from raysim.rayapi.llm.configs import LLMConfig
from raysim.rayapi.llm.engine import Engine, Model
from raysim.rayapi.llm.openai_models import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionRequest,
    CompletionResponse,
    CompletionStreamResponse,
    ErrorInfo,
    ErrorResponse,
    LengthRequest,
    UsageInfo,
)
from raysim.rayapi.llm.texts import chat_tokens, said, said_of
from raysim.rayapi.serve.context import get_multiplexed_model_id
from raysim.rayapi.serve.http import new_id
from raysim.rayapi.serve.serving import stack_costs
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.raylibs.serve.costs import ServeCosts
from raysim.serving.engine import Request
from raysim.serving.fleet import REQUEST_S, TOKENIZE_TOKEN_S
from raysim.units import NS_PER_S

UNLIMITED = 1_000_000_000
"""``DEFAULT_MAX_ONGOING_REQUESTS`` and what is aimed at: Serve does not scale unless told to."""
STREAM_INTERVAL_MS = 50.0
"""``MODEL_RESPONSE_BATCH_TIMEOUT_MS``: tokens of a stream go out together."""
HOPS = 3
"""Client to proxy, proxy to ingress, ingress to server; each there and back."""


def frontend_s(costs: ServeCosts) -> float:
    """Of an idle fleet's request, what Serve's own hops do not take: vLLM's API server."""
    hops_s = costs.proxy_s + costs.ingress_s + costs.handle_s + costs.replica_s
    return max(0.0, REQUEST_S - hops_s - 2 * HOPS * costs.transit_s)


class Answer:
    """One request under way."""

    def __init__(self, server: LLMServer, request: LengthRequest, number: str) -> None:
        self.chat = isinstance(request, ChatCompletionRequest)
        self.request = request
        self.model = request.model or server.config.model_id
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{number}"
        self.created = EPOCH_S + fiber_ns(this_fiber()) // NS_PER_S
        self.prompt_tokens, self.asked = _asked(server, request)
        self.adapter = ""
        self.received = 0
        """Tokens of the prompt that another engine has computed."""
        room = server.engine.room(self.prompt_tokens)
        self.output_tokens = request.sampling.output_tokens(room) if room > 0 else 0
        most = request.sampling.max_tokens
        self.too_long = room <= 0 or (most is not None and most > room)
        self.finish = "stop" if self.output_tokens < min(most or room, room) else "length"

    @property
    def usage(self) -> UsageInfo:
        """Tokens of all choices."""
        made = self.output_tokens * self.request.n
        return UsageInfo(
            prompt_tokens=self.prompt_tokens, total_tokens=self.prompt_tokens + made,
            completion_tokens=made,
        )  # fmt: skip

    def whole(self) -> Any:
        """The response without a stream."""
        text, choices = said(self.output_tokens), []
        for index in range(self.request.n):
            body: dict[str, Any] = {"text": text}
            if self.chat:
                body = {"message": {"role": "assistant", "content": text, "tool_calls": []}}
            choices.append({"index": index, **body, "logprobs": None, "finish_reason": self.finish})
        kind = ChatCompletionResponse if self.chat else CompletionResponse
        return kind(
            id=self.id, created=self.created, model=self.model, choices=choices, usage=self.usage
        )

    def chunks(self, first: int, after: int) -> list[str]:
        """Lines of a stream, one a token."""
        lines = [self._line({"role": "assistant", "content": ""}, None)] if (
            self.chat and not first
        ) else []  # fmt: skip
        for number in range(first, after):
            text = said_of(number, number + 1)
            last = number + 1 == self.output_tokens
            lines.append(
                self._line({"content": text} if self.chat else text, self.finish if last else None)
            )
        if after == self.output_tokens and self.request.with_usage:
            lines.append(self._event([], usage=self.usage.model_dump()))
        return lines

    def _line(self, said_: Any, finish: str | None) -> str:
        body = {"delta" if self.chat else "text": said_}
        return self._event([{"index": 0, **body, "logprobs": None, "finish_reason": finish}])

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> str:
        kind = ChatCompletionStreamResponse if self.chat else CompletionStreamResponse
        made = kind(
            id=self.id, created=self.created, model=self.model, choices=choices, **more
        ).model_dump_json()
        return f"data: {made}\n\n"


class LLMServer:
    """``ray.serve.llm.LLMServer``."""

    role = ""
    """Of its engine, if that does a part."""

    async def __init__(self, llm_config: LLMConfig, **more: Any) -> None:  # type: ignore[misc]
        if more:
            raise NotEmulatedError(f"LLMServer({next(iter(more))}=)")
        self.config = llm_config
        source = llm_config.model_loading_config.source
        self.engine = Engine(Model(source, self.engine_kwargs_of(llm_config)), self.role)
        said_ms = llm_config.experimental_configs.get("stream_batching_interval_ms")
        lora = llm_config.lora_config
        self._load = None if lora is None else loader_of(lora, self.engine.adapter_bytes)
        self._interval_s = (STREAM_INTERVAL_MS if said_ms is None else said_ms) / 1e3
        await asyncio_loop.sleep(self.engine.start_s())

    @classmethod
    def engine_kwargs_of(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """What the engine is told."""
        if llm_config.data_parallel_size > 1:
            raise NotEmulatedError(
                f"{cls.__name__} with data_parallel_size=", "ray.serve.llm.build_dp_openai_app"
            )
        return llm_config.engine_kwargs

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Of its deployment: bundles of its ranks, the replica's own in the first."""
        said_ = dict(llm_config.deployment_config)
        if said_.keys() & {"placement_group_bundles", "placement_group_strategy"}:
            raise ValueError(
                "placement_group_bundles and placement_group_strategy must not be specified in "
                "deployment_config. You can override the default values by setting the "
                "`placement_group_config` in the LLMConfig."
            )
        Model(llm_config.model_loading_config.source, cls.engine_kwargs_of(llm_config))  # or raises
        actor = said_.get("ray_actor_options") or {}
        own = {"CPU": float(actor.get("num_cpus", 1)), "GPU": float(actor.get("num_gpus", 0))}
        own |= actor.get("resources") or {}
        if "memory" in actor:
            own["memory"] = actor["memory"]
        bundles, strategy = llm_config.placement()
        first = bundles[0]
        merged = {k: first.get(k, 0.0) + own.get(k, 0.0) for k in {**first, **own}}
        return said_ | {
            "placement_group_bundles": [{k: v for k, v in merged.items() if v}, *bundles[1:]],
            "placement_group_strategy": strategy,
        }

    async def check_health(self) -> None:
        """An engine does not die by itself."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """Lists of lines of a stream, or one response."""
        del raw_request_info
        async for part in self._run(_as(ChatCompletionRequest, request)):
            yield part

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """As ``chat``."""
        del raw_request_info
        async for part in self._run(_as(CompletionRequest, request)):
            yield part

    async def _run(self, request: LengthRequest) -> AsyncIterator[Any]:
        session = this_fiber().process.session
        answer = Answer(self, request, request.request_id or new_id(session))
        if answer.too_long:
            yield self._refusal(answer)
            return
        answer.adapter = await self._adapter()
        await self.prepare(answer)
        if not request.stream:
            more = [self.engine.generate(self._of(answer)) for _ in range(request.n)]
            await asyncio_loop.gather(*more)
            yield answer.whole()
            return
        if request.n > 1:
            raise NotEmulatedError("a stream of n > 1 choices", "n=1")
        shown = 0
        async for made in self.engine.stream(self._of(answer), self._interval_s):
            yield answer.chunks(shown, made)
            shown = made

    async def _adapter(self) -> str:
        """That the request names, on the replica's disk; none: ``""``."""
        name = get_multiplexed_model_id()
        if not name:
            return ""
        if self._load is None:
            raise ValueError("Must setup lora config for multiplexed requests.")
        await self._load(name)
        self.engine.wants_adapters()
        return name

    async def prepare(self, answer: Answer) -> None:
        """Before the engine has it: vLLM's API server, and its tokenizer."""
        costs = stack_costs(this_fiber().process.session)
        await asyncio_loop.sleep(frontend_s(costs) + TOKENIZE_TOKEN_S * answer.prompt_tokens)

    def _of(self, answer: Answer) -> Request:
        prefix, prefix_tokens = answer.asked
        return self.engine.request(
            answer.prompt_tokens, answer.output_tokens, prefix, prefix_tokens, answer.received,
            answer.adapter,
        )  # fmt: skip

    def _refusal(self, answer: Answer) -> ErrorResponse:
        longest = self.engine.settings.max_model_len
        most = answer.request.sampling.max_tokens or 0
        return ErrorResponse(
            error=ErrorInfo(
                message=f"This model's maximum context length is {longest} tokens. However, you "
                f"requested {most} output tokens and your prompt contains "
                f"{answer.prompt_tokens} input tokens, for a total of "
                f"{answer.prompt_tokens + most} tokens. Please reduce the length of the input "
                "prompt or the number of requested output tokens."
            )
        )


class DPServer(LLMServer):
    """One of several whose engines have attention apart and share experts.

    Real counterpart: ``serve/serving_patterns/data_parallel/dp_server.py``. There they are placed
    and restarted as a gang; here each by itself.
    """

    @classmethod
    def engine_kwargs_of(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """What the engine is told."""
        return llm_config.engine_kwargs

    @classmethod
    def get_deployment_options(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Of its deployment: replicas are groups, of so many."""
        options = super().get_deployment_options(llm_config)
        ranks = llm_config.data_parallel_size
        if ranks == 1:
            return options
        scaling, count = options.get("autoscaling_config"), options.get("num_replicas")
        if count == "auto" or (count is None and scaling is not None):
            raise NotEmulatedError("autoscaling of data-parallel groups", "num_replicas=")
        return options | {"num_replicas": (count or 1) * ranks}


def _as(kind: type[LengthRequest], request: Any) -> LengthRequest:
    """A program may call a server with a dictionary."""
    return kind(**request) if isinstance(request, Mapping) else request


def _asked(server: LLMServer, request: LengthRequest) -> tuple[int, tuple[Any, int]]:
    """Tokens of the prompt; what it begins with as others may, and tokens of that."""
    count = server.engine.model.count
    if isinstance(request, ChatCompletionRequest):
        tokens, before = chat_tokens(request.messages, count)
        return tokens, (repr(request.messages[:-1]), before)
    assert isinstance(request, CompletionRequest), "a chat or a completion"
    prompt = request.prompt
    if isinstance(prompt, str):
        return count(prompt), (None, 0)
    if prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise NotEmulatedError("a completion of several prompts", "a request for each")
        return count(prompt[0]), (None, 0)
    return len(prompt), (None, 0)
