"""What values options may have: models of pydantic, as Ray's are, so that errors are the same.

Real counterpart: ``AutoscalingConfig`` of ``python/ray/serve/config.py``, ``DeploymentConfig`` and
``ReplicaConfig`` of ``_private/config.py``, ``validate_route_prefix`` (ray 2.60). Names that Ray's
models do not know they ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from raysim.raylibs.serve.config import AutoscalingConfig as Scaling

ACTOR_OPTIONS = (
    "accelerator_type", "fallback_strategy", "label_selector", "memory", "num_cpus", "num_gpus",
    "resources", "runtime_env",
)  # fmt: skip


_RAYS = Scaling()
"""Whose defaults are Ray's."""


class AutoscalingConfig(BaseModel):
    """``ray.serve.config.AutoscalingConfig``."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    min_replicas: NonNegativeInt = 1
    initial_replicas: NonNegativeInt | None = None
    max_replicas: PositiveInt = 1
    target_ongoing_requests: PositiveFloat | None = 2
    metrics_interval_s: PositiveFloat = _RAYS.metrics_interval_s
    look_back_period_s: PositiveFloat = _RAYS.look_back_period_s
    smoothing_factor: PositiveFloat = 1.0
    upscale_smoothing_factor: PositiveFloat | None = None
    downscale_smoothing_factor: PositiveFloat | None = None
    upscaling_factor: PositiveFloat | None = None
    downscaling_factor: PositiveFloat | None = None
    downscale_delay_s: NonNegativeFloat = _RAYS.downscale_delay_s
    downscale_to_zero_delay_s: NonNegativeFloat | None = None
    upscale_delay_s: NonNegativeFloat = _RAYS.upscale_delay_s
    aggregation_function: Literal["mean", "max", "min"] = "mean"
    policy: Any = None

    @field_validator("aggregation_function", mode="before")
    @classmethod
    def _lower(cls, said: Any) -> Any:
        return str(getattr(said, "value", said)).lower()

    @model_validator(mode="after")
    def _ordered(self) -> AutoscalingConfig:
        low, high, first = self.min_replicas, self.max_replicas, self.initial_replicas
        if high < low:
            raise ValueError(
                f"max_replicas ({high}) must be greater than or equal to min_replicas ({low})!"
            )
        if first is not None and first < low:
            raise ValueError(
                f"min_replicas ({low}) must be less than or equal to initial_replicas ({first})!"
            )
        if first is not None and first > high:
            raise ValueError(
                f"max_replicas ({high}) must be greater than or equal to initial_replicas "
                f"({first})!"
            )
        return self

    def get_upscaling_factor(self) -> float:
        """As ``policy`` uses it."""
        return self.upscaling_factor or self.upscale_smoothing_factor or self.smoothing_factor

    def get_downscaling_factor(self) -> float:
        """As ``policy`` uses it."""
        return self.downscaling_factor or self.downscale_smoothing_factor or self.smoothing_factor


class DeploymentConfig(BaseModel):
    """Those options of ``@serve.deployment`` that Ray checks by their values."""

    num_replicas: NonNegativeInt | None = None
    max_ongoing_requests: PositiveInt | None = None
    max_queued_requests: int | None = None
    graceful_shutdown_timeout_s: NonNegativeFloat | None = None
    graceful_shutdown_wait_loop_s: NonNegativeFloat | None = None
    health_check_period_s: PositiveFloat | None = None
    health_check_timeout_s: PositiveFloat | None = None
    max_constructor_retry_count: PositiveInt | None = None
    rolling_update_percentage: Annotated[float, Field(gt=0.0, le=1.0)] | None = None

    @field_validator("max_queued_requests")
    @classmethod
    def _limit(cls, said: int | None) -> int | None:
        if said is not None and said < 1 and said != -1:
            raise ValueError("max_queued_requests must be -1 (no limit) or a positive integer.")
        return said


def check_values(said: Mapping[str, Any]) -> None:
    """Options of a deployment.

    Raises
    ------
    ValueError
        pydantic's, of a value; or of an actor's option that replicas cannot have.
    """
    DeploymentConfig(**said)
    actor = said.get("ray_actor_options") or {}
    if not isinstance(actor, Mapping):
        raise TypeError(
            f'Got invalid type "{type(actor)}" for ray_actor_options. Expected a dictionary.'
        )
    for name in actor:
        if name not in ACTOR_OPTIONS:
            raise ValueError(
                f"Specifying '{name}' in ray_actor_options is not allowed. Allowed options: "
                f"{set(ACTOR_OPTIONS)}"
            )


def check_route_prefix(prefix: str | None) -> None:
    """As ``serve.run`` checks it."""
    if prefix is None:
        return
    if not prefix.startswith("/"):
        why = ", must start with a forward slash ('/')."
    elif prefix != "/" and prefix.endswith("/"):
        why = ", may not end with a trailing '/'."
    elif "{" in prefix or "}" in prefix:
        why = ", may not contain wildcards."
    else:
        return
    raise ValueError(f"Invalid route_prefix '{prefix}'{why}")
