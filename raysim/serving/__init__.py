"""LLM inference engines: continuous batching on the kernel's clock."""

from raysim.serving.engine import LLMEngine, Request, Served
from raysim.serving.settings import EngineSettings

__all__ = ["EngineSettings", "LLMEngine", "Request", "Served"]
