"""Prefill and decode in engines of their own: ``build_pd_openai_app``.

Real counterpart: ``llm/_internal/serve/serving_patterns/prefill_decode`` (ray 2.60) with a NIXL
connector. A decoding server has a prefilling one compute the prompt first, and gets its keys and
values; the last token of the prompt it computes itself.

Not modelled: engines that share experts (``data_parallel_size``), what a connector takes beside its
bytes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Self

from pydantic import model_validator

from raysim.rayapi.llm.configs import LLMConfig, LLMConfigOrFile, ServingArgs
from raysim.rayapi.llm.server import Answer, LLMServer
from raysim.rayapi.serve.handle import DeploymentHandle

TRANSFER = "kv_transfer_config"


class PDServingArgs(ServingArgs):
    """What ``build_pd_openai_app`` takes."""

    prefill_config: LLMConfigOrFile
    decode_config: LLMConfigOrFile

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.prefill_config.model_id != self.decode_config.model_id:
            raise ValueError("P/D model id mismatch")
        here, there = self.prefill_config.lora_config, self.decode_config.lora_config
        if (here is None) != (there is None):
            raise ValueError("P/D LoRA must be configured on both prefill and decode")
        if here and there and here.dynamic_lora_loading_path != there.dynamic_lora_loading_path:
            raise ValueError("P/D prefill and decode LoRA loading paths must be the same")
        for config in (self.prefill_config, self.decode_config):
            if config.engine_kwargs.get(TRANSFER) is None:
                raise ValueError("kv_transfer_config is required for P/D disaggregation")
        return self


class _Apart(LLMServer):
    """One side of both."""

    @classmethod
    def engine_kwargs_of(cls, llm_config: LLMConfig) -> dict[str, Any]:
        """Without the connector."""
        return {k: v for k, v in llm_config.engine_kwargs.items() if k != TRANSFER}


class PDPrefillServer(_Apart):
    """Computes prompts, and sends what it keeps of them."""

    role = "prefill of "

    async def prepare(self, answer: Answer) -> None:
        """Tokens come with the request."""

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """One token, when all has been sent."""
        async for part in super().chat(request, raw_request_info):
            yield await self._sent(part)

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        """As ``chat``."""
        async for part in super().completions(request, raw_request_info):
            yield await self._sent(part)

    async def _sent(self, whole: Any) -> Any:
        await self.engine.send(whole.usage.prompt_tokens - 1)
        return whole


class PDDecodeServer(_Apart):
    """Has prompts computed, and decodes."""

    async def __init__(self, llm_config: LLMConfig, prefill_server: DeploymentHandle) -> None:  # type: ignore[misc]
        self._prefill = prefill_server.options(stream=True)
        await super().__init__(llm_config)

    async def prepare(self, answer: Answer) -> None:
        """The prompt's keys and values are here."""
        await super().prepare(answer)
        if answer.prompt_tokens > 1:
            alone = answer.request.model_copy(
                update={"max_tokens": 1, "max_completion_tokens": None, "min_tokens": 0,
                        "stream": False, "n": 1}
            )  # fmt: skip
            method = "chat" if answer.chat else "completions"
            prefill = self._prefill.options(multiplexed_model_id=answer.adapter)
            await anext(getattr(prefill, method).remote(alone))
            answer.received = answer.prompt_tokens - 1
