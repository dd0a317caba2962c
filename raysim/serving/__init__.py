"""LLM inference engines: continuous batching on the kernel's clock."""

from raysim.serving.engine import LLMEngine, Outcome, Request
from raysim.serving.settings import EngineSettings

__all__ = ["EngineSettings", "LLMEngine", "Outcome", "Request"]
