"""What the autoscaler may start, and how eagerly.

Real counterpart: ``python/ray/autoscaler/v2/instance_manager/config.py``; the cluster YAML's
``available_node_types``, or a RayCluster's worker groups under KubeRay.

Not modelled: changing it while the cluster runs (outdated nodes), in-place pod resizing, the
timeout of pending nodes that are no longer needed (off by default).
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerConfig:
    """One cluster's. What is None is taken from ``RayConfig``, or from KubeRay's defaults."""

    node_types: tuple[NodeTypeConfig, ...]
    max_workers: int | None = None
    """Of all types together; None: no limit."""
    upscaling_speed: float | None = None
    idle_timeout_s: float | None = None
    kuberay: bool = False

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
