"""The module ``ray.data.llm`` (2.60): processors that take a dataset through a model.

Real counterpart: ``data/llm.py`` and ``llm/_internal/batch/processor`` (ray 2.60). An engine of
several GPUs is one actor that holds them all, on one node.

Refused by name: SGLang, embeddings and scores, multimodal stages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field, field_validator

from raysim.rayapi.data.dataset import Dataset
from raysim.rayapi.data.strategies import ActorPoolStrategy
from raysim.rayapi.llm import stages
from raysim.rayapi.llm.configs import Config, PlacementGroupConfig, remote
from raysim.rayapi.unsupported import getattr_of

GENERATE = "generate"
_OWN = ("preprocess", "postprocess", "preprocess_map_kwargs", "postprocess_map_kwargs")


class ProcessorConfig(Config):
    """``ray.data.llm.ProcessorConfig``."""

    batch_size: int = 32
    accelerator_type: str | None = None
    concurrency: int | tuple[int, int] = 1

    @field_validator("concurrency")
    @classmethod
    def _possible(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        low, high = (value, value) if isinstance(value, int) else value
        if low <= 0 or high <= 0:
            raise ValueError(f"A positive integer for `concurrency` is expected! Got: `{value}`.")
        if low > high:
            raise ValueError(f"min > max in the concurrency tuple `{value}`!")
        return value

    def pool(self, *, scales: bool) -> ActorPoolStrategy:
        """Of actors: a number is the most, where the pool scales."""
        return _pool(self.concurrency, scales=scales)


class StageConfig(Config):
    """What a stage may say apart from its processor."""

    enabled: bool = True
    batch_size: int | None = None
    concurrency: int | tuple[int, int] | None = None
    runtime_env: dict[str, Any] | None = None
    num_cpus: float | None = None
    memory: float | None = None

    @classmethod
    def of(cls, said: bool | dict[str, Any] | Self) -> Self:
        """A switch, a dictionary or the class."""
        if isinstance(said, bool):
            return cls(enabled=said)
        return cls(**said) if isinstance(said, dict) else said


class TokenizerStageConfig(StageConfig):
    """``ray.data.llm.TokenizerStageConfig``."""

    model_source: str | None = None


class DetokenizeStageConfig(TokenizerStageConfig):
    """``ray.data.llm.DetokenizeStageConfig``."""


class ChatTemplateStageConfig(TokenizerStageConfig):
    """``ray.data.llm.ChatTemplateStageConfig``."""

    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class HttpRequestStageConfig(StageConfig):
    """``ray.data.llm.HttpRequestStageConfig``."""


class PrepareMultimodalStageConfig(StageConfig):
    """``ray.data.llm.PrepareMultimodalStageConfig``, refused when it is enabled."""

    model_config_kwargs: dict[str, Any] | None = None
    chat_template_content_format: str | None = "string"
    apply_sys_msg_formatting: bool | None = False


class vLLMEngineProcessorConfig(ProcessorConfig):  # noqa: N801  (Ray's own name)
    """``ray.data.llm.vLLMEngineProcessorConfig``."""

    model_source: str
    runtime_env: dict[str, Any] | None = None
    max_pending_requests: int | None = None
    max_concurrent_batches: int = 8
    max_tasks_in_flight_per_actor: int | None = None
    should_continue_on_error: bool = False
    chat_template_stage: Any = True
    tokenize_stage: Any = True
    detokenize_stage: Any = True
    prepare_multimodal_stage: Any = False
    engine_kwargs: dict[str, Any] = Field(default_factory=dict)
    task_type: str = GENERATE
    log_engine_metrics: bool = True
    dynamic_lora_loading_path: str | None = None
    placement_group_config: dict[str, Any] | None = None

    @field_validator("dynamic_lora_loading_path")
    @classmethod
    def _remote(cls, value: str | None) -> str | None:
        return remote(value)

    @field_validator("placement_group_config")
    @classmethod
    def _placeable(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        return value if value is None else PlacementGroupConfig(**value).model_dump()

    def held(self) -> dict[str, Any]:
        """By an engine's actor: all of its ranks' bundles."""
        kwargs = self.engine_kwargs
        ranks = kwargs.get("tensor_parallel_size", 1) * kwargs.get("pipeline_parallel_size", 1)
        said = self.placement_group_config
        if said is None:
            return {"num_gpus": ranks}
        each = said["bundle_per_worker"]
        bundles = [each] * ranks if each is not None else said["bundles"]
        sums = {k: sum(b.get(k, 0.0) for b in bundles) for b in bundles for k in b}
        return {
            "num_cpus": sums.pop("CPU", 0.0), "num_gpus": sums.pop("GPU", 0.0), "resources": sums,
        }  # fmt: skip


class HttpRequestProcessorConfig(ProcessorConfig):
    """``ray.data.llm.HttpRequestProcessorConfig``."""

    batch_size: int = 64
    url: str
    headers: dict[str, Any] | None = None
    qps: int | None = None
    max_retries: int = 0
    base_retry_wait_time_in_s: float = 1
    session_factory: Any = None
    http_request_stage: Any = True


class ServeDeploymentProcessorConfig(ProcessorConfig):
    """``ray.data.llm.ServeDeploymentProcessorConfig``."""

    deployment_name: str
    app_name: str = "default"
    dtype_mapping: dict[str, Any] | None = None
    should_continue_on_error: bool = False
    request_timeout_s: float | None = Field(default=None, gt=0)


class _Stage:
    """A step of a processor: its class, what that is made of, and how it runs."""

    def __init__(self, fn: type, made_of: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        self.fn = fn
        self.fn_constructor_kwargs = dict(made_of)
        self.map_batches_kwargs = dict(options)


class Processor:
    """``ray.data.llm.Processor``: a dataset in, a dataset out."""

    def __init__(
        self, config: ProcessorConfig, steps: Mapping[str, _Stage], *, preprocess: Any,
        postprocess: Any, before: Mapping[str, Any], after: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.config = config
        self.stages = dict(steps)
        with_error = getattr(config, "should_continue_on_error", False)
        self.preprocess = _into(preprocess)
        self.postprocess = _out_of(postprocess, with_error=with_error)
        self._before, self._after = dict(before), dict(after)

    def __call__(self, dataset: Dataset) -> Dataset:
        """All steps on it, when it is asked for."""
        made = dataset.map(self.preprocess, **self._before)
        for stage in self.stages.values():
            made = made.map_batches(
                stage.fn, fn_constructor_kwargs=stage.fn_constructor_kwargs,
                **{"batch_size": self.config.batch_size, **stage.map_batches_kwargs},
            )  # fmt: skip
        return made.map(self.postprocess, **self._after)

    def list_stage_names(self) -> list[str]:
        """In order."""
        return list(self.stages)

    def get_stage_by_name(self, name: str) -> _Stage:
        """One of them."""
        if name not in self.stages:
            raise ValueError(f"Stage {name} not found")
        return self.stages[name]

    def log_input_column_names(self) -> None:
        """What the first stage must find."""
        name, stage = next(iter(self.stages.items()))
        required: Mapping[str, str] = getattr(stage.fn, "required", {})
        lines = [f"The first stage of the processor is {name}.", "Required input columns:"]
        lines += [f"\t{column}: {what}" for column, what in required.items()]
        sys.stderr.write("\n".join(lines) + "\n")


def build_processor(
    config: ProcessorConfig, preprocess: Any = None, postprocess: Any = None,
    preprocess_map_kwargs: Mapping[str, Any] | None = None,
    postprocess_map_kwargs: Mapping[str, Any] | None = None,
    builder_kwargs: Mapping[str, Any] | None = None,
) -> Processor:  # fmt: skip
    """``ray.data.llm.build_processor``."""
    taken = set(_OWN) & set(builder_kwargs or ())
    if taken:
        raise ValueError(
            f"builder_kwargs cannot contain {taken} as these are passed as explicit arguments to "
            "build_processor. Please pass these directly instead of in builder_kwargs."
        )
    if type(config) not in _BUILDERS:
        known = {kind.__name__: kind for kind in _BUILDERS}
        raise ValueError(
            f"Processor config type {type(config).__name__} not registered. Available types: "
            f"{known.keys()}"
        )
    steps = _BUILDERS[type(config)](config)
    return Processor(
        config, {_called(stage.fn): stage for stage in steps},
        preprocess=preprocess, postprocess=postprocess, before=preprocess_map_kwargs or {},
        after=postprocess_map_kwargs or {},
    )  # fmt: skip


def _called(fn: type) -> str:
    """As Ray calls a stage."""
    return fn.__name__.removesuffix("UDF").removesuffix("Stage") + "Stage"


def _vllm(config: vLLMEngineProcessorConfig) -> list[_Stage]:
    """Template, tokens, engine, text."""
    if PrepareMultimodalStageConfig.of(config.prepare_multimodal_stage).enabled:
        raise stages.refused("prepare_multimodal_stage")
    if config.task_type != GENERATE:
        raise stages.refused(f"task_type={config.task_type!r}")
    steps: list[_Stage] = []
    template = ChatTemplateStageConfig.of(config.chat_template_stage)
    tokenizer = TokenizerStageConfig.of(config.tokenize_stage)
    text = DetokenizeStageConfig.of(config.detokenize_stage)
    if template.enabled:
        steps.append(_cpu_stage(stages.ChatTemplateUDF, config, template))
    if tokenizer.enabled:
        model = tokenizer.model_source or config.model_source
        steps.append(_cpu_stage(stages.TokenizeUDF, config, tokenizer, model=model))
    kwargs = {k: v for k, v in config.engine_kwargs.items() if k not in ("model", "task_type")}
    steps.append(
        _Stage(
            stages.vLLMEngineStageUDF,
            {"model": config.model_source, "engine_kwargs": kwargs,
             "most": config.max_pending_requests, "continues": config.should_continue_on_error,
             "adapters_at": config.dynamic_lora_loading_path},
            {"compute": config.pool(scales=True),
             "max_concurrency": config.max_concurrent_batches,
             "accelerator_type": config.accelerator_type, **config.held()},
        )
    )  # fmt: skip
    if text.enabled:
        steps.append(_cpu_stage(stages.DetokenizeUDF, config, text))
    return steps


def _http(config: HttpRequestProcessorConfig) -> list[_Stage]:
    said = HttpRequestStageConfig.of(config.http_request_stage)
    if not said.enabled:
        raise ValueError(
            "The HTTP request stage is required and cannot be disabled in "
            "HttpRequestProcessorConfig."
        )
    if config.session_factory is not None:
        raise stages.refused("session_factory=")
    return [
        _cpu_stage(
            stages.HttpRequestUDF, config, said, url=config.url, headers=config.headers or {},
            qps=config.qps, retries=config.max_retries, wait_s=config.base_retry_wait_time_in_s,
        )
    ]  # fmt: skip


def _serve(config: ServeDeploymentProcessorConfig) -> list[_Stage]:
    if config.request_timeout_s is not None:
        raise stages.refused("request_timeout_s=")
    made_of = {
        "deployment": config.deployment_name, "app": config.app_name,
        "kinds": config.dtype_mapping or {}, "continues": config.should_continue_on_error,
    }  # fmt: skip
    return [
        _Stage(stages.ServeDeploymentStageUDF, made_of, {"compute": config.pool(scales=False)})
    ]  # fmt: skip


_BUILDERS: dict[type, Callable[[Any], list[_Stage]]] = {
    vLLMEngineProcessorConfig: _vllm, HttpRequestProcessorConfig: _http,
    ServeDeploymentProcessorConfig: _serve,
}  # fmt: skip


def _cpu_stage(fn: type, config: ProcessorConfig, said: StageConfig, **made_of: Any) -> _Stage:
    options: dict[str, Any] = {
        "compute": _pool(said.concurrency or config.concurrency, scales=True),
        "batch_size": said.batch_size or config.batch_size,
    }
    if said.num_cpus is not None:
        options["num_cpus"] = said.num_cpus
    return _Stage(fn, made_of, options)


def _pool(concurrency: int | tuple[int, int], *, scales: bool) -> ActorPoolStrategy:
    if isinstance(concurrency, tuple):
        return ActorPoolStrategy(min_size=concurrency[0], max_size=concurrency[1])
    if scales:
        return ActorPoolStrategy(min_size=1, max_size=concurrency)
    return ActorPoolStrategy(size=concurrency)


def _into(function: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A row, with what the program makes of it, in one column."""

    def preprocess(row: dict[str, Any]) -> dict[str, Any]:
        return {stages.DATA: row | (function(row) if function is not None else {})}

    return preprocess


def _out_of(function: Any, *, with_error: bool) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What the program makes of a row that has gone through; one that failed stays as it is."""

    def postprocess(row: dict[str, Any]) -> dict[str, Any]:
        data: dict[str, Any] = row[stages.DATA]
        if data.get(stages.ERROR):
            return data
        made: dict[str, Any] = function(data) if function is not None else data
        return made | {stages.ERROR: ""} if with_error else made

    return postprocess


__getattr__ = getattr_of("ray.data.llm")

__all__ = [
    "ChatTemplateStageConfig",
    "DetokenizeStageConfig",
    "HttpRequestProcessorConfig",
    "HttpRequestStageConfig",
    "PrepareMultimodalStageConfig",
    "Processor",
    "ProcessorConfig",
    "ServeDeploymentProcessorConfig",
    "TokenizerStageConfig",
    "build_processor",
    "vLLMEngineProcessorConfig",
]
