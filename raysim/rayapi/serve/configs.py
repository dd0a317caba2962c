"""Options of ``@serve.deployment`` and ``serve.start``, checked as Ray checks them.

Real counterpart: ``python/ray/serve/config.py`` and ``api.py`` (ray 2.60).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysim.rayapi.serve.policies import (
    AutoscalingContext,  # noqa: F401  (of Ray's module)
    AutoscalingPolicy,  # noqa: F401  (as above)
    ProgramPolicy,
)
from raysim.rayapi.serve.validation import (
    AutoscalingConfig,
    HTTPOptions,  # noqa: F401  (of Ray's module)
    ProxyLocation,  # noqa: F401  (as above)
    check_values,
    gRPCOptions,  # noqa: F401  (as above)
)
from raysim.rayapi.unsupported import NotEmulatedError, check_names, getattr_of
from raysim.raylibs.serve.config import AutoscalingConfig as Scaling
from raysim.raylibs.serve.config import DeploymentConfig, MultiplexConfig
from raysim.raylibs.serve.defaults import RAY_2_60

AUTO = {"target_ongoing_requests": 2.0, "min_replicas": 1, "max_replicas": 100}
"""Of ``num_replicas="auto"``."""
SAME = (
    "max_ongoing_requests", "max_queued_requests", "graceful_shutdown_timeout_s",
    "graceful_shutdown_wait_loop_s", "health_check_period_s", "max_constructor_retry_count",
)  # fmt: skip
"""Options that the emulated deployment has under the same name."""
WITHOUT_EFFECT = ("health_check_timeout_s", "logging_config", "backpressure_config")
REFUSED = (
    "placement_group_bundle_label_selector", "max_replicas_per_node", "request_router_config",
    "gang_scheduling_config", "deployment_actors", "max_surge_percent",
)  # fmt: skip
OWN = (
    "num_replicas", "ray_actor_options", "placement_group_bundles", "placement_group_strategy",
    "user_config", "autoscaling_config", "rolling_update_percentage",
)  # fmt: skip
OPTIONS = (*OWN, *SAME, *WITHOUT_EFFECT, *REFUSED)


def checked(options: Mapping[str, Any], function: str = "deployment") -> dict[str, Any]:
    """Options as Ray takes them; ``num_replicas="auto"`` becomes a way to scale.

    Parameters
    ----------
    options
        As they were said.
    function
        Who is told of those that Ray has not.

    Raises
    ------
    TypeError, ValueError
        As Ray does.
    NotEmulatedError
        What the emulated Serve has not.
    """
    said = dict(options)
    check_names(function, said, OPTIONS)
    for name in REFUSED:
        if said.get(name):
            raise NotEmulatedError(f"@serve.deployment({name}=)")
    replicas, scaling = said.get("num_replicas"), said.get("autoscaling_config")
    if replicas == "auto":
        said["num_replicas"] = None
        if isinstance(scaling, AutoscalingConfig):
            scaling = scaling.model_dump(exclude_unset=True)
        said["autoscaling_config"] = AUTO | dict(scaling or {})
    elif replicas == 0:
        raise ValueError("num_replicas is expected to larger than 0")
    elif replicas is not None and scaling is not None:
        raise ValueError(
            "Manually setting num_replicas is not allowed when autoscaling_config is provided."
        )
    if "max_ongoing_requests" in said and said["max_ongoing_requests"] is None:
        raise ValueError("`max_ongoing_requests` must be non-null, got None.")
    check_values(said)
    scaling_of(said.get("autoscaling_config"))
    return said


def scaling_of(said: Any) -> Scaling | None:
    """``autoscaling_config=``: a dictionary, or Ray's class.

    Raises
    ------
    ValueError
        pydantic's, of its values.
    """
    if said is None or isinstance(said, Scaling):
        return said
    model = said if isinstance(said, AutoscalingConfig) else AutoscalingConfig(**said)
    said_of = ((name, getattr(model, name)) for name in _SCALING)
    return Scaling(
        **{name: value for name, value in said_of if value is not None},
        upscaling_factor=model.get_upscaling_factor(),
        downscaling_factor=model.get_downscaling_factor(),
    )


_SCALING = tuple(
    name for name in AutoscalingConfig.model_fields
    if name in Scaling.__dataclass_fields__ and not name.endswith("scaling_factor")
)  # fmt: skip
"""Fields that the emulated Serve has under the same name."""


def deployment_config(
    name: str, said: Mapping[str, Any], version: str, app_name: str | None = None
) -> DeploymentConfig:
    """What is deployed, in an application if there is one; ``said`` has been ``checked``."""
    same = {key: said[key] for key in SAME if said.get(key) is not None}
    scaling = scaling_of(said.get("autoscaling_config"))
    if scaling is not None and scaling.policy is not None and app_name is not None:
        policy = ProgramPolicy(scaling.policy, scaling, name, app_name)
        scaling = replace(scaling, policy=policy)
    return DeploymentConfig(
        name=name,
        num_replicas=said.get("num_replicas") or 1,
        autoscaling=scaling,
        resources=_resources(said.get("ray_actor_options") or {}),
        placement_group_bundles=tuple(said.get("placement_group_bundles") or ()),
        placement_group_strategy=said.get("placement_group_strategy") or "PACK",
        rolling_update_frac=said.get("rolling_update_percentage") or RAY_2_60.rolling_update_frac,
        multiplex=MultiplexConfig(load_s=None),
        version=version,
        **same,
    )


def _resources(actor: Mapping[str, Any]) -> dict[str, float]:
    """A replica holds one CPU where nothing is said."""
    amounts = {"CPU": float(actor.get("num_cpus", 1)), "GPU": float(actor.get("num_gpus", 0))}
    if actor.get("memory"):
        amounts["memory"] = float(actor["memory"])
    amounts |= {k: float(v) for k, v in (actor.get("resources") or {}).items()}
    return {name: amount for name, amount in amounts.items() if amount}


__getattr__ = getattr_of("ray.serve.config")
