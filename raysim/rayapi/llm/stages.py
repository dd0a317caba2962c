"""Stages of ``ray.data.llm`` processors: what each does with the rows of a batch.

Real counterpart: ``llm/_internal/batch/stages`` (ray 2.60). A stage is a callable class of Ray
Data's; rows go through in a column of their own, so that what a stage adds is beside what was
there.

Not modelled: images and audio, embeddings, timeouts of a deployment's answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from math import ceil
from typing import Any, ClassVar

from raysim.rayapi import asyncio_loop
from raysim.rayapi.calls import this_fiber
from raysim.rayapi.clock import fiber_ns
from raysim.rayapi.compute import charge
from raysim.rayapi.llm.adapters import Disk
from raysim.rayapi.llm.engine import Engine, Model, Sampling
from raysim.rayapi.llm.texts import FILLER_ID, Count, chat_tokens, content_of, counter, said
from raysim.rayapi.serve import serving
from raysim.rayapi.serve.http import new_id
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.serving.fleet import TOKENIZE_TOKEN_S
from raysim.units import NS_PER_S

DATA = "__data"
"""Column of a row as it goes through."""
ERROR = "__inference_error__"
RETRIED = (429, 408, 504, 502, 503)
"""Statuses of HTTP after which a request is sent again."""
PENDING_FACTOR = 1.1
"""Requests at most under way in an engine, of the sequences that it runs."""
Row = dict[str, Any]


class Stage:
    """``StatefulStageUDF``: rows out of their column, and back in what was made of them."""

    required: ClassVar[Mapping[str, str]] = {}
    """Columns, and what they are."""
    numbers = False
    """Rows say which batch they were in."""

    def __init__(self, *, continues: bool = False) -> None:
        self._continues = continues
        this_fiber().process.priced = True

    async def one(self, row: Row) -> Row:
        """What is added to a row."""
        raise NotImplementedError

    async def __call__(self, batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """A batch, its rows side by side."""
        number = new_id(this_fiber().process.session).replace("-", "") if self.numbers else ""
        rows = [dict(row) for row in batch[DATA]]
        whole = [row for row in rows if not row.get(ERROR)]
        for row in whole:
            missing = self.required.keys() - row.keys()
            if missing:
                raise ValueError(
                    f"Required input keys {missing} not found at the input of "
                    f"{type(self).__name__}. Input keys: {set(row)}"
                )
        found = await self.each(whole)
        for row, made in zip(whole, found, strict=True):
            row.update(made)
            if self.numbers:
                row["batch_uuid"] = number
        yield {DATA: rows}

    async def each(self, rows: list[Row]) -> list[Row]:
        """Of all rows of a batch at once."""
        return list(await asyncio_loop.gather(*map(self._tried, rows)))

    async def _tried(self, row: Row) -> Row:
        try:
            return await self.one(row)
        except Exception as error:
            if not self._continues:
                raise
            return {ERROR: f"{type(error).__name__}: {error}"}


class ChatTemplateUDF(Stage):
    """Messages become one prompt, roles and all (ChatML; a model's own template is not known)."""

    required: ClassVar[Mapping[str, str]] = {
        "messages": "A list of messages in OpenAI chat format. "
        "See https://platform.openai.com/docs/api-reference/chat/create for details."
    }  # fmt: skip

    async def one(self, row: Row) -> Row:
        """The prompt."""
        turns = [
            f"<|im_start|>{m['role']}\n{content_of(m)}<|im_end|>\n" for m in row["messages"]
        ]  # fmt: skip
        return {"prompt": "".join(turns) + "<|im_start|>assistant\n"}


class TokenizeUDF(Stage):
    """Prompts become token ids, of which only the number is known."""

    required: ClassVar[Mapping[str, str]] = {"prompt": "The text prompt (str) to tokenize."}

    def __init__(self, *, model: str) -> None:
        super().__init__()
        self._count = counter(model)

    async def one(self, row: Row) -> Row:
        """Its tokens."""
        tokens = self._count(row["prompt"])
        charge(core_seconds=tokens * TOKENIZE_TOKEN_S)
        return {"tokenized_prompt": [FILLER_ID] * tokens}


class DetokenizeUDF(Stage):
    """Tokens that were made become text."""

    required: ClassVar[Mapping[str, str]] = {
        "generated_tokens": "A list of generated tokens (int) to detokenize."
    }

    async def one(self, row: Row) -> Row:
        """Its text."""
        return {"generated_text": said(len(row["generated_tokens"]))}


class vLLMEngineStageUDF(Stage):  # noqa: N801  (Ray's own name)
    """An engine, and all rows of some batches in it at once."""

    numbers = True
    required: ClassVar[Mapping[str, str]] = {
        "sampling_params": "The sampling parameters. See "
        "https://docs.vllm.ai/en/latest/api/vllm/#vllm.SamplingParams for details."
    }  # fmt: skip

    def __init__(
        self,
        *,
        model: str,
        engine_kwargs: Mapping[str, Any],
        most: int | None = None,
        continues: bool = False,
        adapters_at: str | None = None,
    ) -> None:
        super().__init__(continues=continues)
        if engine_kwargs.get("data_parallel_size", 1) > 1:
            raise refused("data_parallel_size=")
        self._engine = Engine(Model(model, engine_kwargs))
        self._adapters = Disk(adapters_at, self._engine.adapter_bytes)
        self._numbered = 0
        places = ceil(PENDING_FACTOR * (self._engine.settings.max_num_seqs or 0))
        limit = places if most is None else most
        self._places = asyncio_loop.Semaphore(limit) if limit > 0 else None
        fiber = this_fiber()
        fiber.sleep(fiber.take_lead() + round(self._engine.start_s() * NS_PER_S))

    async def one(self, row: Row) -> Row:
        """The answer, and what it took."""
        fiber = this_fiber()
        number, began_ns = self._numbered, fiber_ns(fiber)
        self._numbered += 1
        params = dict(row["sampling_params"])
        if self._places is None:
            answer = await self._answer(row, params)
        else:
            async with self._places:
                answer = await self._answer(row, params)
        took_s = (fiber_ns(fiber) - began_ns) / NS_PER_S
        return answer | {
            "request_id": number, "time_taken_llm": took_s, "params": str(params), ERROR: "",
        }  # fmt: skip

    async def _answer(self, row: Row, params: Mapping[str, Any]) -> Row:
        engine, ids = self._engine, row.get("tokenized_prompt")
        tokens = len(ids) if ids is not None else engine.model.count(row["prompt"])
        room = engine.room(tokens)
        if room <= 0:
            raise ValueError(
                f"The decoder prompt (length {tokens}) is longer than the maximum model length of "
                f"{engine.settings.max_model_len}."
            )
        known = {k: params[k] for k in ("max_tokens", "min_tokens", "ignore_eos") if k in params}
        made = Sampling(**{"max_tokens": 16} | known).output_tokens(room)
        prefix, prefix_tokens = _before(row, engine.model.count)
        adapter = await self._adapter(row)
        asked = engine.request(tokens, made, prefix, prefix_tokens, adapter=adapter)
        await engine.generate(asked)
        return {
            "prompt": row.get("prompt", ""),
            "prompt_token_ids": ids if ids is not None else [FILLER_ID] * tokens,
            "num_input_tokens": tokens, "generated_tokens": [FILLER_ID] * made,
            "generated_text": "" if params.get("detokenize") is False else said(made),
            "num_generated_tokens": made,
        }  # fmt: skip

    async def _adapter(self, row: Row) -> str:
        """A row that names another model than the engine's names an adapter; none: ``""``."""
        name: str = row.get("model", self._engine.model.source)
        if name == self._engine.model.source:
            return ""
        await self._adapters.has(name)
        self._engine.wants_adapters()
        return name


def _before(row: Row, count: Count) -> tuple[Any, int]:
    """Messages before the last one, which other rows may have too."""
    if row.get("messages") is None:
        return None, 0
    messages = list(row["messages"])
    return repr(messages[:-1]), chat_tokens(messages, count)[1]


class HttpRequestUDF(Stage):
    """Payloads to a server, one after the other, and what that answers.

    Ray's stage makes all requests of a batch first, at the pace of ``qps``, but nothing is sent
    before it is awaited, in order.
    """

    required: ClassVar[Mapping[str, str]] = {
        "payload": "The payload to send to the HTTP request. It should be in JSON format."
    }

    def __init__(
        self, *, url: str, headers: Mapping[str, Any], qps: int | None, retries: int, wait_s: float
    ) -> None:
        super().__init__()
        self._url, self._headers = url, dict(headers)
        self._qps, self._retries, self._wait_s = qps, retries, wait_s

    async def each(self, rows: list[Row]) -> list[Row]:
        """In one session of a client."""
        import aiohttp

        if self._qps is not None:
            await asyncio_loop.sleep(len(rows) / self._qps)
        async with aiohttp.ClientSession() as session:
            return [{"http_response": await self._ask(session, r["payload"])} for r in rows]

    async def _ask(self, session: Any, payload: Any) -> Any:
        import aiohttp

        last = ""
        for tries in range(self._retries + 1):
            try:
                async with session.post(self._url, json=payload, headers=self._headers) as reply:
                    if reply.status not in RETRIED:
                        return await reply.json()
                    last = f"{reply.status} {reply.reason}"
            except (TimeoutError, aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as e:
                last = type(e).__name__
            await asyncio_loop.sleep(self._wait_s * 2**tries)
        raise RuntimeError(
            f"Reached maximum retries of {self._retries} for input row {payload}. "
            f"Previous Exception: {last}."
        )


class ServeDeploymentStageUDF(Stage):
    """Each row is a call of a deployment's method."""

    numbers = True
    required: ClassVar[Mapping[str, str]] = {
        "method": "Name of the method to invoke on the serve deployment.",
        "request_kwargs": "The request_kwargs to construct the request.",
    }  # fmt: skip

    def __init__(
        self, *, deployment: str, app: str, kinds: Mapping[str, Any], continues: bool = False
    ) -> None:
        super().__init__(continues=continues)
        self._handle = serving.get_deployment_handle(deployment, app).options(stream=True)
        self._kinds = kinds
        self._numbered = 0

    async def one(self, row: Row) -> Row:
        """The first that the method yields."""
        kind = row.get("dtype")
        if kind is not None and kind not in self._kinds:
            raise ValueError(
                f"{kind} must be provided in ServeDeploymentProcessorConfig's dtype_mapping."
            )
        number = str(self._numbered)
        self._numbered += 1
        began_ns = fiber_ns(this_fiber())
        request = {"request_id": number, **row.pop("request_kwargs")}
        asked = self._kinds[kind](**request) if kind is not None else request
        answer = await anext(getattr(self._handle, row["method"]).remote(asked))
        dump = getattr(answer, "model_dump", None)
        made: Row = dict(dump() if dump is not None else answer)
        took_s = (fiber_ns(this_fiber()) - began_ns) / NS_PER_S
        return made | {"request_id": number, "time_taken": took_s, ERROR: ""}


def refused(name: str) -> NotEmulatedError:
    """Of a stage that is not there."""
    return NotEmulatedError(f"ray.data.llm with {name}", "text through a vLLM engine")
