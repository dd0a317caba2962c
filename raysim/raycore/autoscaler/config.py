"""What the autoscaler may start, and how eagerly.

Real counterpart: ``python/ray/autoscaler/v2/instance_manager/config.py``; the cluster YAML's
``available_node_types``, or a RayCluster's worker groups under KubeRay.

Not modelled: in-place pod resizing, the timeout of pending nodes that are no longer needed (off by
default).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from raysim.raycore.config import RayConfig

KUBERAY_IDLE_TIMEOUT_S = 60.0
"""``idleTimeoutSeconds`` of ``autoscalerOptions``."""

KUBERAY_UPSCALING_SPEED = 1000.0
"""``upscalingMode: Default`` and ``Aggressive``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTypeConfig:
    """One kind of node."""

    name: str
    resources: dict[str, float]
    """What a node of it will offer."""
    labels: dict[str, str] = field(default_factory=dict)
    min_workers: int = 0
    max_workers: int = 0
    idle_timeout_s: float | None = None
    """Instead of the cluster's."""
    priority: int = 0
    """Among types that would do equally well, the higher is taken."""
    launch_config: str = ""
    """Stands for image and machine type: nodes started with another one are outdated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long an instance may stay where it is; seconds.

    Of version 2, ``InstanceReconcileConfig`` (``v2/instance_manager/config.py``).
    """

    requested_s: float = 600.0
    allocated_s: float = 3_600.0
    ray_installing_s: float = 1_800.0
    ray_stop_requested_s: float = 300.0
    allocation_retries: int = 3


V1_TIMEOUTS = Timeouts(requested_s=900.0, allocated_s=900.0, ray_installing_s=900.0)
"""``AUTOSCALER_NODE_START_WAIT_S``: in version 1 a machine without Ray is ended after 900 s."""

V1_DEMAND_SIZE = 1_000
"""``AUTOSCALER_MAX_RESOURCE_DEMAND_VECTOR_SIZE``: version 1 looks at so many requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """One cluster's. What is None is taken from ``RayConfig``, or from KubeRay's defaults."""

    node_types: tuple[NodeTypeConfig, ...]
    max_workers: int | None = None
    """Of all types together; None: no limit."""
    upscaling_speed: float | None = None
    idle_timeout_s: float | None = None
    kuberay: bool = False
    version: Literal["v1", "v2"] = "v2"
    """Rules for launching; v1 was the default before Ray 2.47."""
    disable_launch_config_check: bool = True
    """The provider's setting of this name, with its default: outdated nodes may stay."""

    @property
    def timeouts(self) -> Timeouts:
        """Of its version."""
        return Timeouts() if self.version == "v2" else V1_TIMEOUTS

    def speed(self, config: RayConfig) -> float:
        """Nodes of a type that may be asked for at once, per running node of it."""
        if self.upscaling_speed is not None:
            return self.upscaling_speed
        return KUBERAY_UPSCALING_SPEED if self.kuberay else config.upscaling_speed

    def idle_s(self, config: RayConfig) -> float:
        """How long a node may be idle."""
        if self.idle_timeout_s is not None:
            return self.idle_timeout_s
        return KUBERAY_IDLE_TIMEOUT_S if self.kuberay else config.idle_timeout_minutes * 60
