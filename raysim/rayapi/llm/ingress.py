"""``OpenAiIngress``: OpenAI's API over HTTP in front of the models' servers.

Real counterpart: ``llm/_internal/serve/core/ingress`` (ray 2.60).

Not modelled: embeddings, scores, transcriptions, tokenizing; sessions; the server's own timeout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse

from raysim.rayapi.calls import this_fiber
from raysim.rayapi.compute import charge
from raysim.rayapi.llm.adapters import base_of
from raysim.rayapi.llm.configs import LLMConfig
from raysim.rayapi.llm.openai_models import (
    ChatCompletionRequest,
    CompletionRequest,
    ErrorInfo,
    ErrorResponse,
    LengthRequest,
    ModelCard,
    ModelList,
)
from raysim.rayapi.llm.server import UNLIMITED
from raysim.rayapi.llm.texts import CHARACTERS
from raysim.rayapi.serve.handle import DeploymentHandle
from raysim.rayapi.serve.ingress import ingress
from raysim.serving.fleet import PARSE_TOKEN_S

BAD, NOT_FOUND = 400, 404
APP = FastAPI()


def _failed(status: int, message: str, kind: str) -> JSONResponse:
    error = ErrorInfo(message=message, type=kind, code=status)
    return JSONResponse(ErrorResponse(error=error).model_dump(), status_code=status)


async def _refused(_: Any, error: Any) -> JSONResponse:
    return _failed(error.status_code, error.detail, type(error).__name__)


async def _invalid(_: Any, error: Any) -> JSONResponse:
    return _failed(BAD, f"Invalid request format: {error}", "BadRequestError")


APP.add_exception_handler(HTTPException, _refused)
APP.add_exception_handler(RequestValidationError, _invalid)


@ingress(APP)
class OpenAiIngress:
    """``ray.serve.llm.ingress.OpenAiIngress``."""

    def __init__(
        self,
        llm_deployments: Mapping[str, DeploymentHandle],
        model_cards: Mapping[str, ModelCard],
        *,
        lora_paths: Mapping[str, str] | None = None,
    ) -> None:
        del lora_paths
        self._handles = {name: h.options(stream=True) for name, h in llm_deployments.items()}
        self._cards = dict(model_cards)
        if type(self) is OpenAiIngress:
            this_fiber().process.priced = True

    @classmethod
    def get_deployment_options(cls, llm_configs: list[LLMConfig] | None = None) -> dict[str, Any]:
        """Of its deployment; nothing runs if no model does."""
        scaling: dict[str, Any] = {"target_ongoing_requests": UNLIMITED}
        least = [
            (c.deployment_config.get("autoscaling_config") or {}).get("min_replicas")
            for c in llm_configs or ()
        ]
        if least and all(n == 0 for n in least):
            scaling["min_replicas"] = 0
        return {"max_ongoing_requests": UNLIMITED, "autoscaling_config": scaling}

    async def check_health(self) -> None:
        """It is well."""

    # what subclasses may change

    async def models(self) -> ModelList:
        """All that are served."""
        return ModelList(data=list(self._cards.values()))

    async def model_data(self, model: str) -> ModelCard:
        """One of them."""
        if model not in self._cards:
            raise HTTPException(
                NOT_FOUND,
                f"Unable to find {model}. Please ensure that the model exists and you have "
                "permission.",
            )
        return self._cards[model]

    async def chat(self, body: ChatCompletionRequest, request: Request) -> Any:
        """A chat's answer."""
        return await self._answer(body, "chat", request)

    async def completions(self, body: CompletionRequest, request: Request) -> Any:
        """A completion."""
        return await self._answer(body, "completions", request)

    # the routes

    @APP.get("/v1/models")
    async def _models(self) -> ModelList:
        return await self.models()

    @APP.get("/v1/models/{model:path}")
    async def _model(self, model: str) -> ModelCard:
        return await self.model_data(model)

    @APP.post("/v1/chat/completions", response_model=None)
    async def _chat(self, body: ChatCompletionRequest, request: Request) -> Any:
        return await self.chat(body, request)

    @APP.post("/v1/completions", response_model=None)
    async def _completions(self, body: CompletionRequest, request: Request) -> Any:
        return await self.completions(body, request)

    # how

    async def _answer(self, body: LengthRequest, method: str, request: Request) -> Any:
        charge(core_seconds=len(await request.body()) / CHARACTERS * PARSE_TOKEN_S)
        parts = getattr(self._handle(body), method).remote(body)
        first = await anext(parts)
        if isinstance(first, ErrorResponse):
            return _failed(first.error.code, first.error.message, first.error.type)
        if not isinstance(first, list):
            return JSONResponse(first.model_dump())
        return StreamingResponse(_events(first, parts), media_type="text/event-stream")

    def _handle(self, body: LengthRequest) -> DeploymentHandle:
        model = body.model
        if model is None:
            if len(self._handles) > 1:
                raise HTTPException(
                    BAD,
                    "Model parameter is required when multiple models are configured. "
                    f"Available models: {list(self._handles)}",
                )
            model = next(iter(self._handles))
        base = base_of(model)
        if base not in self._handles:
            raise HTTPException(
                NOT_FOUND,
                f'Got request for model "{model}". Could not find base model with ID "{base}".',
            )
        handle = self._handles[base]
        return handle if model == base else handle.options(multiplexed_model_id=model)


async def _events(first: list[str], parts: Any) -> AsyncIterator[str]:
    yield "".join(first)
    async for part in parts:
        yield "".join(part)
    yield "data: [DONE]\n\n"
