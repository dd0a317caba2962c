"""How a cluster file lets its cluster grow: the autoscaler's settings for a Ray program.

Real counterpart: ``_private/util.py`` and ``v2/instance_manager/config.py`` of Ray's autoscaler for
``ray up`` files, ``ray_operator``'s ``autoscalerOptions`` for KubeRay.

Not modelled: ``initial_workers``, ``autoscalerOptions`` of the container (image, resources).
"""

from __future__ import annotations

from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.raycore.autoscaler import AutoscalerConfig
from raysim.raycore.autoscaler.config import NodeTypeConfig
from raysim.scenario.documents import Document, value_at
from raysim.scenario.kuberay import is_kuberay

_RAY_MAX_WORKERS = 2
"""``max_workers`` of ``python/ray/autoscaler/aws/defaults.yaml`` and others."""


def autoscaler_of(spec: ClusterSpec, documents: tuple[Document, ...]) -> AutoscalerConfig | None:
    """None for a cluster whose groups cannot grow.

    Parameters
    ----------
    spec
        The cluster as it starts.
    documents
        Of its file; empty when the cluster is written in the scenario.
    """
    growing = [g for g in spec.groups if not g.head and (g.max_count or 0) > g.min_count]
    if not growing or not documents:
        return None
    kuberay = next((d.data for d in documents if is_kuberay(d)), None)
    types = tuple(_type(group) for group in spec.groups if not group.head)
    if kuberay is not None:
        options = value_at(_raycluster(kuberay), ("autoscalerOptions",)) or {}
        idle_s = options.get("idleTimeoutSeconds")
        slow = options.get("upscalingMode") == "Conservative"
        return AutoscalerConfig(
            node_types=types, kuberay=True, upscaling_speed=1.0 if slow else None,
            idle_timeout_s=None if idle_s is None else float(idle_s),
        )  # fmt: skip
    data = documents[0].data
    minutes, speed = data.get("idle_timeout_minutes"), data.get("upscaling_speed")
    return AutoscalerConfig(
        node_types=types,
        max_workers=int(data.get("max_workers", _RAY_MAX_WORKERS)),
        upscaling_speed=None if speed is None else float(speed),
        idle_timeout_s=None if minutes is None else float(minutes) * 60,
    )


def _raycluster(resource: object) -> object:
    """The RayCluster's spec within a RayCluster, RayJob or RayService."""
    for path in (("spec", "rayClusterSpec"), ("spec", "rayClusterConfig"), ("spec",)):
        found = value_at(resource, path)
        if isinstance(found, dict):
            return found
    return {}


def _type(group: NodeGroup) -> NodeTypeConfig:
    """What a node of the group will offer, as the cluster makes it."""
    node = group.node
    resources = {"CPU": float(node.vcpus), "memory": 0.7 * node.memory_bytes}
    if node.gpu is not None:
        resources |= {"GPU": float(node.gpu_count), f"accelerator_type:{node.gpu.name}": 1.0}
    return NodeTypeConfig(
        name=group.name,
        resources=resources | group.resources,
        labels={"ray.io/node-group": group.name},
        min_workers=group.min_count,
        max_workers=group.max_count if group.max_count is not None else group.count,
    )
