"""What ``import vllm`` itself has."""

from __future__ import annotations

from raysim.rayapi.vllm.async_engine import AsyncLLMEngine
from raysim.rayapi.vllm.llm import LLM
from raysim.rayapi.vllm.requests import (
    CompletionOutput,
    RequestOutput,
    SamplingParams,
    TextPrompt,
    TokensPrompt,
)
from raysim.rayapi.vllm.settings import AsyncEngineArgs, EngineArgs
from raysim.rayapi.vllm.utils import configure_as_vllm_process

VERSION = "0.14.0"
"""Whose names are here; what scripts compare with."""

__all__ = [
    "LLM", "VERSION", "AsyncEngineArgs", "AsyncLLMEngine", "CompletionOutput", "EngineArgs",
    "RequestOutput", "SamplingParams", "TextPrompt", "TokensPrompt", "configure_as_vllm_process",
]  # fmt: skip
