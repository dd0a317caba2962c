"""Requests and answers of engines: ``SamplingParams``, prompts, ``RequestOutput``.

Real counterparts: ``vllm/sampling_params.py``, ``vllm/inputs``, ``vllm/outputs.py``. What a model
would say is not known: an answer is as long as ``rayapi.llm.engine`` says, of one filler token.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from raysim.rayapi.llm.engine import Sampling
from raysim.rayapi.llm.texts import FILLER_ID, said

DEFAULT_TOKENS = 16
"""``SamplingParams.max_tokens``, where nothing is said."""


class RequestOutputKind(Enum):
    """``vllm.sampling_params.RequestOutputKind``."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


class SamplingParams:
    """``vllm.SamplingParams``: what says how long an answer is and how many there are."""

    def __init__(
        self, n: int = 1, max_tokens: int | None = DEFAULT_TOKENS, min_tokens: int = 0,
        ignore_eos: bool = False, logprobs: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        if n < 1:
            raise ValueError(f"n must be at least 1, got {n}.")
        self.n, self.max_tokens, self.min_tokens = n, max_tokens, min_tokens
        self.ignore_eos, self.logprobs = ignore_eos, logprobs
        vars(self).update({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop": None, **more})

    @property
    def length(self) -> Sampling:
        """Of its answers."""
        return Sampling(
            max_tokens=self.max_tokens, min_tokens=self.min_tokens, ignore_eos=self.ignore_eos
        )

    def clone(self) -> SamplingParams:
        """A copy."""
        return copy.deepcopy(self)


class GuidedDecodingParams:
    """``GuidedDecodingParams``: no answer is guided."""

    def __init__(self, **asked: Any) -> None:
        vars(self).update(asked)


StructuredOutputsParams = GuidedDecodingParams


@dataclass
class LoRARequest:
    """``vllm.lora.request.LoRARequest``."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""


class TokensPrompt(dict[str, Any]):
    """``vllm.inputs.TokensPrompt``: a dictionary."""


class TextPrompt(dict[str, Any]):
    """``vllm.inputs.TextPrompt``: a dictionary."""


@dataclass
class Logprob:
    """``vllm.logprobs.Logprob``: of a token that nobody knows."""

    logprob: float = float("nan")
    rank: int | None = 1
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """``vllm.CompletionOutput``."""

    index: int
    text: str
    token_ids: Sequence[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: Any = None

    def finished(self) -> bool:
        """All of it is there."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """``vllm.RequestOutput``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: Any = None
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    metrics: Any = None
    lora_request: Any = None
    num_cached_tokens: int | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One prompt, and what is to be made of it."""

    text: str | None
    ids: list[int]
    sampling: SamplingParams
    output_tokens: int

    @property
    def prefix(self) -> Hashable:
        """What tells its prompt from others."""
        return self.text if self.text is not None else tuple(self.ids)

    def answer(self, number: str) -> RequestOutput:
        """All of it."""
        most = self.sampling.max_tokens
        ends = "length" if most is not None and self.output_tokens >= most else "stop"
        made = [
            CompletionOutput(
                index=i, text=said(self.output_tokens), token_ids=[FILLER_ID] * self.output_tokens,
                logprobs=self._logprobs(), finish_reason=ends,
                cumulative_logprob=None if self.sampling.logprobs is None else float("nan"),
            )
            for i in range(self.sampling.n)
        ]  # fmt: skip
        return RequestOutput(
            request_id=number, prompt=self.text, prompt_token_ids=self.ids, outputs=made
        )

    def _logprobs(self) -> list[dict[int, Logprob]] | None:
        if self.sampling.logprobs is None:
            return None
        return [{FILLER_ID: Logprob()} for _ in range(self.output_tokens)]


def prompt_of(prompt: Any, count: Callable[[str], int]) -> tuple[str | None, list[int]]:
    """Text, if it has one, and tokens of what a program gives as a prompt.

    Raises
    ------
    ValueError
        It is no prompt.
    """
    if isinstance(prompt, str):
        return prompt, [FILLER_ID] * count(prompt)
    if hasattr(prompt, "get"):
        ids = prompt.get("prompt_token_ids")
        if ids is not None:
            return prompt.get("prompt"), [int(i) for i in ids]
        if isinstance(prompt.get("prompt"), str):
            return prompt_of(prompt["prompt"], count)
    elif isinstance(prompt, Sequence) and all(isinstance(i, int) for i in prompt):
        return None, list(prompt)
    raise ValueError(
        f"no prompt: {prompt!r:.80}; a text, a list of token ids, or a dictionary with 'prompt' or "
        "'prompt_token_ids'"
    )
