"""Small engines with times that can be worked out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from raysim.kernel.simulation import Simulation
from raysim.serving.capacity import Capacity
from raysim.serving.engine import ONE_STAGE, LLMEngine
from raysim.serving.fleet import Fleet, IngressSpec
from raysim.serving.settings import EngineSettings
from raysim.serving.stages import Stages

NO_INGRESS = IngressSpec(replicas=0, request_s=0.0, tokenize_token_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """An iteration takes a fixed time, more per token, and more per token of context."""

    fixed_s: float = 10e-3
    token_s: float = 10e-6
    context_s: float = 1e-8

    def tokens_s(self, tokens: int) -> float:
        return self.token_s * tokens

    def sampled_s(self, _sequences: int) -> float:
        return self.fixed_s

    def prompt_s(self, tokens: int, before: int, _alike: int = 1) -> float:
        return self.context_s * tokens * (before + tokens) / 2

    def contexts_ahead_s(self, lengths: Any, steps: int, **_: Any) -> Any:
        ahead = np.arange(steps)
        return (lengths.sum() + ahead * len(lengths)) * self.context_s


def engine(
    simulation: Simulation, *, blocks: int = 10_000, window_blocks: int = 0,
    times: Any = None, stepwise: bool = False, stages: Stages = ONE_STAGE, **settings: Any,
) -> LLMEngine:  # fmt: skip
    """One with blocks of 16 tokens."""
    said: dict[str, Any] = {"max_num_seqs": 64, "max_num_batched_tokens": 2048} | settings
    capacity = Capacity(
        usable_bytes=1e9, weights_bytes=0.0, working_bytes=0.0, kv_bytes_per_token=1e3,
        blocks=blocks, block_size=16, window_blocks=window_blocks,
    )  # fmt: skip
    return LLMEngine(
        simulation, times or Linear(), capacity, EngineSettings(**said), stages=stages,
        stepwise=stepwise,
    )  # fmt: skip


def fleet(
    simulation: Simulation, *, engines: int = 1, prefill: int = 0,
    ingress: IngressSpec = NO_INGRESS, kv_bytes_per_s: float = 11e9, **more: Any,
) -> Fleet:  # fmt: skip
    """Equal engines."""
    made = Fleet(simulation, ingress, simulation.rng("router"), kv_bytes_per_s=kv_bytes_per_s)
    for _ in range(engines):
        made.add(engine(simulation, **more))
    for _ in range(prefill):
        made.add(engine(simulation, **more), prefills=True)
    return made
