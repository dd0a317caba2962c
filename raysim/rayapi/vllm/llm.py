"""``vllm.LLM``: an engine that answers whole batches.

Real counterpart: ``vllm/entrypoints/llm.py``. Not modelled: pooling, beams, embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from raysim.errors import InfeasibleError
from raysim.rayapi.calls import program_call, this_fiber
from raysim.rayapi.compute import charge
from raysim.rayapi.llm.texts import content_of
from raysim.rayapi.unsupported import NotEmulatedError
from raysim.rayapi.vllm.core import EngineCore
from raysim.rayapi.vllm.requests import Asked, RequestOutput, SamplingParams
from raysim.serving.fleet import TOKENIZE_TOKEN_S


class LLM:
    """``vllm.LLM``."""

    @program_call
    def __init__(self, model: str, **given: Any) -> None:
        self._core = EngineCore(model, given)
        settings = self._core.engine.settings
        self.llm_engine = SimpleNamespace(
            reset_prefix_cache=self.reset_prefix_cache, collective_rpc=self.collective_rpc,
            model_config=SimpleNamespace(
                model=model, max_model_len=settings.max_model_len, dtype=given.get("dtype", "auto")
            ),
            vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_rank=0)),
        )  # fmt: skip

    @program_call
    def generate(
        self, prompts: Any = None, sampling_params: Any = None,
        prompt_token_ids: Sequence[Sequence[int]] | None = None, **more: Any,
    ) -> list[RequestOutput]:  # fmt: skip
        """Answers in the order of the prompts, once the last is whole."""
        if more.get("lora_request") is not None:
            raise NotEmulatedError("LLM.generate(lora_request=)", "merged weights")
        given = prompt_token_ids if prompts is None else prompts
        if given is None:
            raise ValueError("Either prompts or prompt_token_ids must be provided.")
        batch = [given] if _is_one(given) else list(given)
        sampling = sampling_params or SamplingParams()
        each = list(sampling) if isinstance(sampling, Sequence) else [sampling] * len(batch)
        if len(each) != len(batch):
            raise ValueError("The lengths of prompts and sampling_params must be the same.")
        asked = [self._core.asked(p, s) for p, s in zip(batch, each, strict=True)]
        self._tokenize(asked)
        self._answer(asked)
        return [a.answer(self._core.number()) for a in asked]

    @program_call
    def chat(self, messages: Any, sampling_params: Any = None, **more: Any) -> list[RequestOutput]:
        """Of one conversation or several."""
        several = bool(messages) and isinstance(messages[0], list)
        prompts = ["\n".join(map(content_of, m)) for m in (messages if several else [messages])]
        return self.generate(prompts, sampling_params, **more)

    def _tokenize(self, asked: list[Asked]) -> None:
        tokens = sum(len(a.ids) for a in asked if a.text is not None)
        if tokens:
            charge(core_seconds=tokens * TOKENIZE_TOKEN_S)

    def _answer(self, asked: list[Asked]) -> None:
        core, fiber = self._core, this_fiber()
        requests = [r for a in asked for r in core.requests_of(a)]
        if not requests:
            return
        core.begins()
        left = len(requests)
        sim = fiber.process.session.sim

        def begin(then: Callable[[Any], object]) -> None:
            def made(outcome: Any) -> None:
                nonlocal left
                core.engine.outcomes.append(outcome)
                left -= 1
                if not left:
                    sim.call_later(0, then, None)

            for request in requests:
                core.engine.runs.submit(request, made)

        try:
            fiber.block(begin)
        except InfeasibleError as error:
            raise ValueError(str(error)) from None
        core.ends()

    # ---- between rollouts ------------------------------------------------------------------------

    @program_call
    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """``LLM.collective_rpc``."""
        del timeout
        return self._core.collective_rpc(method, args, kwargs)

    @program_call
    def apply_model(self, func: Callable[[Any], Any]) -> list[Any]:
        """A function of each worker's model."""
        return self._core.collective_rpc(lambda worker: func(worker.get_model()))

    @program_call
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """``LLM.sleep``."""
        del mode
        self._core.sleep(level)

    @program_call
    def wake_up(self, tags: list[str] | None = None) -> None:
        """``LLM.wake_up``."""
        self._core.wake_up(tags)

    @program_call
    def reset_prefix_cache(self, *_args: Any, **_kwargs: Any) -> bool:
        """``LLM.reset_prefix_cache``."""
        self._core.reset_prefix_cache()
        return True

    def get_tokenizer(self) -> Any:
        """The model's."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._core.model.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotEmulatedError(f"vllm.LLM.{name}", "generate, chat, collective_rpc, sleep")


def _is_one(given: Any) -> bool:
    """Whether it is a prompt, and not several."""
    if isinstance(given, str) or hasattr(given, "get"):
        return True
    return bool(given) and all(isinstance(i, int) for i in given)


__all__ = ["LLM"]
