"""``vllm.AsyncLLMEngine``: an engine that answers requests one by one, in an event loop.

Real counterpart: ``vllm/v1/engine/async_llm.py``. An answer comes whole.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from raysim.rayapi import asyncio_loop
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.rayapi.vllm.core import EngineCore
from raysim.rayapi.vllm.requests import RequestOutput, SamplingParams
from raysim.rayapi.vllm.settings import AsyncEngineArgs, EngineArgs


class AsyncLLMEngine:
    """``vllm.AsyncLLMEngine``, which is ``AsyncLLM``."""

    def __init__(self, args: EngineArgs) -> None:
        self._core = EngineCore(args.model, args.given)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs, **_more: Any) -> AsyncLLMEngine:
        """The usual way."""
        return cls(engine_args)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **_more: Any
    ) -> AsyncIterator[RequestOutput]:
        """Its answer."""
        core = self._core
        asked = core.asked(prompt, sampling_params)
        core.begins()
        try:
            await asyncio_loop.gather(*map(core.engine.generate, core.requests_of(asked)))
        finally:
            core.ends()
        yield asked.answer(request_id)

    async def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """In all workers."""
        del timeout
        return self._core.collective_rpc(method, args, kwargs)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """As ``LLM.sleep``."""
        del mode
        self._core.sleep(level)

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """As ``LLM.wake_up``."""
        self._core.wake_up(tags)

    async def reset_prefix_cache(self, *_args: Any, **_kwargs: Any) -> bool:
        """As ``LLM.reset_prefix_cache``."""
        self._core.reset_prefix_cache()
        return True

    async def is_sleeping(self) -> bool:
        """Whether any of it is."""
        return bool(self._core.asleep)

    def shutdown(self) -> None:
        """It ends with its process."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotEmulatedError(f"vllm.AsyncLLMEngine.{name}", "generate, collective_rpc, sleep")


AsyncLLM = AsyncLLMEngine

__all__ = ["AsyncEngineArgs", "AsyncLLM", "AsyncLLMEngine"]
