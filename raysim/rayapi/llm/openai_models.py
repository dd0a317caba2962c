"""``ray.serve.llm.openai_api_models``: requests and responses of OpenAI's API.

Real counterpart: ``vllm/entrypoints/openai`` by way of ``openai_api_models.py`` (ray 2.60). Fields
that change no length are kept and have no effect.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from raysim.rayapi.llm.engine import Sampling

OWNER = "organization-owner"


class Message(BaseModel):
    """Of all of them: what else is said stays."""

    model_config = ConfigDict(protected_namespaces=(), extra="allow")


class LengthRequest(Message):
    """What requests of text have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    request_id: str | None = None

    @property
    def sampling(self) -> Sampling:
        """What says how long the answer is."""
        return Sampling(
            max_tokens=self.max_tokens, min_tokens=self.min_tokens, ignore_eos=self.ignore_eos
        )

    @property
    def with_usage(self) -> bool:
        """A stream ends with what was used."""
        return bool((self.stream_options or {}).get("include_usage"))


class ChatCompletionRequest(LengthRequest):
    """``/v1/chat/completions``."""

    messages: list[Any]
    max_completion_tokens: int | None = None

    @property
    def sampling(self) -> Sampling:
        """By the newer name, if it is said."""
        return Sampling(
            max_tokens=self.max_completion_tokens or self.max_tokens, min_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
        )  # fmt: skip


class CompletionRequest(LengthRequest):
    """``/v1/completions``."""

    prompt: Any
    max_tokens: int | None = 16


class ErrorInfo(Message):
    """What went wrong."""

    message: str
    type: str = "BadRequestError"
    param: str | None = None
    code: int = 400


class ErrorResponse(Message):
    """In place of an answer."""

    error: ErrorInfo


class UsageInfo(Message):
    """Tokens of a request."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int


class Completion(Message):
    """What answers have in common."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]


class ChatCompletionResponse(Completion):
    """All of a chat's answer."""

    object: str = "chat.completion"
    usage: UsageInfo


class CompletionResponse(Completion):
    """All of a completion."""

    object: str = "text_completion"
    usage: UsageInfo


class ChatCompletionStreamResponse(Completion):
    """One token of a chat."""

    object: str = "chat.completion.chunk"


class CompletionStreamResponse(Completion):
    """One token of a completion."""

    object: str = "text_completion"


class ModelCard(Message):
    """One model that is served."""

    id: str
    object: str = "model"
    owned_by: str = OWNER
    permission: list[str] = []
    metadata: dict[str, Any] = {}


class ModelList(Message):
    """All of them."""

    data: list[ModelCard]
    object: str = "list"


def card_of(config: Any) -> ModelCard:
    """Of an ``LLMConfig``."""
    return ModelCard(
        id=config.model_id,
        metadata={
            "model_id": config.model_id, "input_modality": config.input_modality,
            "max_request_context_length": config.max_request_context_length,
        },
    )  # fmt: skip
