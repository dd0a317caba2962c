"""LLM serving by numbers, as a scenario says it (``workloads.llm_job``)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from raysim.scenario.quantities import BytesPerSecond, PositiveCount
from raysim.scenario.schema_workload import per_second
from raysim.scenario.section import Section

Few = Annotated[int, Field(ge=1, le=100_000)]
Variation = Annotated[float, Field(ge=0, le=10)]


def _rate(value: Any) -> Any:
    """``15/s`` beside a bare number, which the next validator judges."""
    return per_second(value) if isinstance(value, str) and "/" in value else value


Rate = Annotated[float, BeforeValidator(_rate), Field(gt=0, le=1e7)]


class LengthsSection(Section):
    """Tokens of prompts or outputs."""

    mean: Annotated[float, Field(ge=1, le=1e7)] = Field(description="In the mean.")
    cv: Variation = Field(
        0.0, description="Standard deviation over mean, of a log-normal; 0: all alike."
    )


class LoadSection(Section):
    """What clients send, as `vllm bench serve` does."""

    prompt: LengthsSection = Field(description="Tokens of prompts.")
    output: LengthsSection = Field(description="Tokens to be made.")
    requests: PositiveCount = Field(description="How many, in all.")
    rate: Rate | None = Field(
        None, description="Requests per second, a Poisson process: 20, or 20/s, 1200/min."
    )
    concurrency: Few | None = Field(None, description="At most so many under way.")
    prefixes: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="Prompts begin with one of so many texts."
    )
    prefix_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        0, description="Tokens of each of these."
    )

    @model_validator(mode="after")
    def _some_load(self) -> LoadSection:
        if self.rate is None and self.concurrency is None:
            raise ValueError("give a rate, or a concurrency, or both")
        return self


class ColdStartSection(Section):
    """Phases of a replica's start."""

    load: BytesPerSecond | None = Field(None, description="At which weights are read, all ranks.")
    compile_cached: bool = Field(False, description="torch.compile finds its cache.")


class LlmSection(Section):
    """A model served by Ray Serve LLM, and clients that ask it."""

    model: Annotated[str, Field(min_length=1)] = Field(
        description="Hugging Face config.json, unmodified."
    )
    engine_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="vLLM's arguments, as in an LLMConfig."
    )
    replicas: Few = Field(
        1, description="num_replicas: engines; with prefill_replicas, those that decode."
    )
    prefill_replicas: Annotated[int, Field(ge=0, le=100_000)] = Field(
        0, description="Engines that only prefill, as build_pd_openai_app has them."
    )
    ingress_replicas: Annotated[int, Field(ge=0, le=10_000)] | None = Field(
        None, description="OpenAiIngress processes; by default two per replica, 2 to 10."
    )
    cpus: Annotated[float, Field(ge=0, le=1e4)] = Field(1.0, description="Of a replica's actor.")
    kv_transfer: BytesPerSecond | None = Field(
        None, description="Keys and values from prefill to decode; 11 GB/s by default."
    )
    cold_start: ColdStartSection | None = Field(
        None, description="How replicas start; {} for defaults. Without it they are warm."
    )
    load: LoadSection = Field(description="What clients send.")
