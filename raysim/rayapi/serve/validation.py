"""What values options may have: models of pydantic, as Ray's are, so that errors are the same.

Real counterpart: ``AutoscalingConfig``, ``HTTPOptions``, ``gRPCOptions`` of
``python/ray/serve/config.py``, ``DeploymentConfig`` and
``ReplicaConfig`` of ``_private/config.py``, ``validate_route_prefix`` (ray 2.60). Names that Ray's
models do not know they ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
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

from raysim.rayapi.unsupported import NotEmulatedError
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


class ProxyLocation(str, Enum):  # noqa: UP042  (Ray's prints as an enumeration)
    """``ray.serve.config.ProxyLocation``."""

    Disabled = "Disabled"
    HeadOnly = "HeadOnly"
    EveryNode = "EveryNode"


class HTTPOptions(BaseModel):
    """``ray.serve.config.HTTPOptions``: the port is where programs ask.

    Raises
    ------
    NotEmulatedError
        An end-to-end timeout.
    """

    model_config = ConfigDict(validate_assignment=True, arbitrary_types_allowed=True)

    host: str | None = "127.0.0.1"
    port: int = 8000
    middlewares: list[Any] = []
    location: ProxyLocation | None = None
    num_cpus: int = 0
    root_url: str = ""
    root_path: str = ""
    request_timeout_s: float | None = None
    keep_alive_timeout_s: int = 90
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None

    @field_validator("location", mode="before")
    @classmethod
    def _place(cls, said: Any) -> Any:
        if said is not None and not isinstance(said, str):
            raise TypeError(f"Must be a `ProxyLocation` or str, got: {type(said)}.")
        return ProxyLocation.Disabled if said == "NoServer" else said

    @field_validator("ssl_certfile")
    @classmethod
    def _pair(cls, said: str | None, info: Any) -> str | None:
        if bool(said) != bool(info.data.get("ssl_keyfile")):
            raise ValueError(
                "Both ssl_keyfile and ssl_certfile must be provided together to enable HTTPS."
            )
        return said

    @field_validator("middlewares")
    @classmethod
    def _no_middlewares(cls, said: list[Any]) -> list[Any]:
        if said:
            raise ValueError(
                "`middlewares` in HTTPOptions has been removed. Use Serve's FastAPI integration "
                "to configure middlewares on ingress deployments instead: "
                "https://docs.ray.io/en/latest/serve/http-guide.html#fastapi-http-deployments"
            )
        return said

    @field_validator("num_cpus")
    @classmethod
    def _no_cpus(cls, said: int) -> int:
        if said:
            raise ValueError(
                "`num_cpus` in HTTPOptions has been removed. Serve no longer supports configuring "
                "CPU reservations for HTTP proxy actors via HTTPOptions."
            )
        return said

    def model_post_init(self, _context: Any, /) -> None:
        """Without a host there are no proxies."""
        if self.request_timeout_s is not None:
            raise NotEmulatedError("HTTPOptions(request_timeout_s=)", "result(timeout_s=)")
        if self.host is None:
            self.__dict__["location"] = ProxyLocation.Disabled


class gRPCOptions(BaseModel):  # noqa: N801  (Ray's own name)
    """``ray.serve.config.gRPCOptions``: what is asked on which port.

    Raises
    ------
    NotEmulatedError
        An end-to-end timeout.
    """

    port: int = 9000
    grpc_servicer_functions: list[Any] = []
    request_timeout_s: float | None = None
    enable_reflection: bool = True

    def model_post_init(self, _context: Any, /) -> None:
        """What is not emulated is refused."""
        if self.request_timeout_s is not None:
            raise NotEmulatedError("gRPCOptions(request_timeout_s=)", "timeout= of the client")


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
    autoscaling_config: AutoscalingConfig | None = None

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
    DeploymentConfig(**{n: v for n, v in said.items() if not isinstance(v, Scaling)})
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
