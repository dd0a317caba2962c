"""``LLMConfig`` and what it is made of, checked as Ray checks them.

Real counterpart: ``llm/_internal/serve/core/configs/llm_config.py`` and ``common/placement.py``
(ray 2.60).

Refused when they are used: TPUs, engines of one's own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from ruamel.yaml import YAML

from raysim.rayapi.serve.configs import checked
from raysim.rayapi.util import accelerators

ENGINE = "vLLM"
ACCELERATOR_SHARE = 0.001
SERVICES = {"s3": "s3", "gs": "gcs", "abfss": "azure-blob", "azure": "azure-blob"}
"""Of buckets, by what their addresses begin with."""
_ALIASES = {"A10": "A10G"}


class Config(BaseModel):
    """Of all of them: unknown keys are mistakes."""

    model_config = ConfigDict(protected_namespaces=(), extra="forbid", arbitrary_types_allowed=True)

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Of a YAML file."""
        return cls.model_validate(YAML(typ="safe").load(Path(path)))


class CloudMirrorConfig(Config):
    """``ray.serve.llm.CloudMirrorConfig``: where weights lie."""

    bucket_uri: str | None = None
    extra_files: list[Any] = []


def remote(path: str | None) -> str | None:
    """Where adapters lie, which is a bucket if it is said.

    Raises
    ------
    ValueError
        It is none.
    """
    if path is not None and not path.startswith(tuple(f"{scheme}://" for scheme in SERVICES)):
        raise ValueError(
            "Only AWS S3, Google Cloud Storage, and Azure Storage are supported. The "
            'dynamic_lora_loading_path must start with "s3://", "gs://", "abfss://", or '
            f'"azure://". Got "{path}" instead.'
        )
    return path and path.rstrip("/")


class LoraConfig(Config):
    """``ray.serve.llm.LoraConfig``."""

    dynamic_lora_loading_path: str | None = None
    max_num_adapters_per_replica: int = Field(default=16, gt=0)
    download_timeout_s: float | None = 30.0
    max_download_tries: int = 3

    @field_validator("dynamic_lora_loading_path")
    @classmethod
    def _remote(cls, value: str | None) -> str | None:
        return remote(value)


class ModelLoadingConfig(Config):
    """``ray.serve.llm.ModelLoadingConfig``: what clients call it, and where it comes from."""

    model_id: str
    model_source: str | CloudMirrorConfig | None = None
    tokenizer_source: str | None = None

    @property
    def source(self) -> str:
        """What names the model's config: an address of a bucket does not."""
        said = self.model_source
        remote = not isinstance(said, str) or "://" in said
        return self.model_id if said is None or remote else str(said)


class PlacementGroupConfig(Config):
    """Bundles of an engine's workers."""

    bundle_per_worker: dict[str, float] | None = None
    bundles: list[dict[str, float]] | None = None
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.bundle_per_worker is not None and self.bundles is not None:
            raise ValueError(
                "Cannot specify both 'bundle_per_worker' and 'bundles' in placement_group_config."
            )
        if self.bundle_per_worker is None and self.bundles is None:
            raise ValueError(
                "placement_group_config must specify either 'bundle_per_worker' or 'bundles'."
            )
        return self


class LLMConfig(Config):
    """``ray.serve.llm.LLMConfig``."""

    runtime_env: dict[str, Any] | None = None
    model_loading_config: ModelLoadingConfig
    llm_engine: str = ENGINE
    engine_kwargs: dict[str, Any] = {}
    accelerator_type: str | None = None
    accelerator_config: Any = None
    placement_group_config: dict[str, Any] | None = None
    lora_config: LoraConfig | None = None
    deployment_config: dict[str, Any] = {}
    server_cls: Any = None
    experimental_configs: dict[str, Any] = {}
    log_engine_metrics: bool | None = True
    callback_config: Any = None

    @property
    def model_id(self) -> str:
        """What clients call it."""
        return self.model_loading_config.model_id

    @property
    def max_request_context_length(self) -> int | None:
        """If it is said."""
        return self.engine_kwargs.get("max_model_len")

    @property
    def input_modality(self) -> str:
        """Images are not modelled."""
        return "text"

    @field_validator("llm_engine")
    @classmethod
    def _known_engine(cls, value: str) -> str:
        if value != ENGINE:
            raise ValueError(f"Unsupported engine: {value}")
        return value

    @field_validator("accelerator_type")
    @classmethod
    def _known_type(cls, value: str | None) -> str | None:
        value = _ALIASES.get(value or "", value)
        types = {v for v in vars(accelerators).values() if isinstance(v, str)}
        if value is not None and value not in types:
            raise ValueError(f"Unsupported accelerator type: {value}")
        return value

    @field_validator("deployment_config")
    @classmethod
    def _deployable(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            checked({k: v for k, v in value.items() if k != "name"})
        except (TypeError, ValueError) as error:
            raise ValueError(f"Invalid deployment config: {value}") from error
        return value

    @field_validator("experimental_configs")
    @classmethod
    def _renamed(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "num_router_replicas" in value:
            raise ValueError(
                "The 'num_router_replicas' key in experimental_configs has been renamed to "
                "'num_ingress_replicas'. Please update your configuration to use "
                "'num_ingress_replicas' instead."
            )
        return value

    @model_validator(mode="after")
    def _stats_for_metrics(self) -> Self:
        if self.log_engine_metrics and self.engine_kwargs.get("disable_log_stats"):
            raise ValueError(
                "disable_log_stats cannot be set to True when log_engine_metrics is enabled. "
                "Engine metrics require log stats to be enabled."
            )
        return self

    @property
    def gpus(self) -> int:
        """Ranks of one engine."""
        kwargs = self.engine_kwargs
        size: int = kwargs.get("tensor_parallel_size", 1) * kwargs.get("pipeline_parallel_size", 1)
        return size

    @property
    def data_parallel_size(self) -> int:
        """Engines that share experts.

        Raises
        ------
        ValueError
            It is no positive number.
        """
        size: int = self.engine_kwargs.get("data_parallel_size", 1)
        if not (isinstance(size, int) and size > 0):
            raise ValueError(f"Invalid data_parallel_size: {size}, expecting positive integer.")
        return size

    def placement(self) -> tuple[list[dict[str, float]], str]:
        """Bundles of one engine's ranks, and their strategy."""
        bundles, strategy = [{"GPU": 1.0}] * self.gpus, "PACK"
        if self.placement_group_config is not None:
            said = PlacementGroupConfig(**self.placement_group_config)
            strategy = said.strategy
            each = said.bundle_per_worker
            bundles = [each] * self.gpus if each is not None else said.bundles or []
        kind = {} if self.accelerator_type is None else {
            f"accelerator_type:{self.accelerator_type}": ACCELERATOR_SHARE
        }  # fmt: skip
        return [kind | dict(bundle) for bundle in bundles], strategy


class IngressClsConfig(Config):
    """Which class is the ingress, and what it is made of."""

    ingress_cls: Any = None
    ingress_extra_kwargs: dict[str, Any] = {}


class ServingArgs(Config):
    """What every application of models behind an ingress takes."""

    ingress_cls_config: IngressClsConfig = Field(default_factory=IngressClsConfig)
    ingress_deployment_config: dict[str, Any] = {}


def _read(value: Any) -> Any:
    return LLMConfig.from_file(value) if isinstance(value, str) else value


LLMConfigOrFile = Annotated[LLMConfig, BeforeValidator(_read)]
"""A config, or the name of the file that has it."""


class DPServingArgs(ServingArgs):
    """What ``build_dp_openai_app`` takes."""

    llm_config: LLMConfigOrFile


class LLMServingArgs(ServingArgs):
    """``ray.serve.llm.LLMServingArgs``: what ``build_openai_app`` takes."""

    llm_configs: list[LLMConfigOrFile]

    @field_validator("llm_configs", mode="before")
    @classmethod
    def _are_there(cls, value: Any) -> Any:
        for each in value if isinstance(value, list) else ():
            if isinstance(each, str) and not Path(each).exists():
                raise ValueError(
                    f"Could not load model config from {each}, as the file does not exist."
                )
        return value

    @model_validator(mode="after")
    def _told_apart(self) -> Self:
        if len({config.model_id for config in self.llm_configs}) != len(self.llm_configs):
            raise ValueError("Duplicate models found. Make sure model ids are unique.")
        if not self.llm_configs:
            raise ValueError(
                "List of models is empty. Maybe some parameters cannot be parsed into the "
                "LLMConfig config."
            )
        return self
