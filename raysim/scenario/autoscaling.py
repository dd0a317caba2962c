"""How a cluster file lets its cluster grow, and what machines do: come, and are taken back.

Real counterpart: ``_private/util.py`` and ``v2/instance_manager/config.py`` of Ray's autoscaler for
``ray up`` files, ``ray_operator``'s ``autoscalerOptions`` for KubeRay.

Not modelled: ``initial_workers``, ``autoscalerOptions`` of the container (image, resources).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from raysim.errors import Problem
from raysim.hardware.cluster import ClusterSpec, NodeGroup
from raysim.raycore.autoscaler import AutoscalerConfig
from raysim.raycore.autoscaler.config import NodeTypeConfig
from raysim.raycore.cloud import (
    COLD_CPU_POD,
    COLD_GPU_POD,
    PHASES,
    WARM_POD,
    CloudSpec,
    NodeStart,
    Stockout,
)
from raysim.scenario.documents import Document, did_you_mean, value_at
from raysim.scenario.kuberay import is_kuberay
from raysim.scenario.schema_program import ProgramSection, StartSection
from raysim.workloads.program import SpotSpec

_RAY_MAX_WORKERS = 2
"""``max_workers`` of ``python/ray/autoscaler/aws/defaults.yaml`` and others."""
_V2_SINCE = (2, 47)
"""Release of Ray from which the autoscaler's version 2 is the default."""
_SPARE_FRAC, _SPARE_LEAST = 0.25, 2
"""Machines beyond the most of a spot group: those lost are in Ray's table for a minute longer."""


def autoscaler_of(
    spec: ClusterSpec,
    documents: Sequence[Document],
    version: Literal["v1", "v2"] | None = None,
    *,
    kept: bool = False,
    resized: bool = False,
) -> AutoscalerConfig | None:
    """None for a cluster whose groups cannot grow.

    Parameters
    ----------
    spec
        The cluster as it starts.
    documents
        Of its file; empty when the cluster is written in the scenario.
    version
        Instead of what the file says.
    kept
        Nodes are lost and must be replaced: a `ray up` cluster's autoscaler does, even if the
        groups cannot grow.
    resized
        The scenario says other sizes of groups than the file, whose total gives way to them.
    """
    growing = [g for g in spec.groups if not g.head and (g.max_count or 0) > g.min_count]
    kuberay = next((d.data for d in documents if is_kuberay(d)), None)
    if not documents or not (growing or (kept and kuberay is None)):
        return None
    types = tuple(_type(group) for group in spec.groups if not group.head)
    version = version or _version(kuberay)
    if kuberay is not None:
        options = value_at(_raycluster(kuberay), ("autoscalerOptions",)) or {}
        idle_s = options.get("idleTimeoutSeconds")
        slow = options.get("upscalingMode") == "Conservative"
        return AutoscalerConfig(
            node_types=types, kuberay=True, version=version, upscaling_speed=1.0 if slow else None,
            idle_timeout_s=None if idle_s is None else float(idle_s),
        )  # fmt: skip
    data = documents[0].data
    most = int(data.get("max_workers", _RAY_MAX_WORKERS))
    if resized:
        most = max(most, sum(t.max_workers for t in types))
    minutes, speed = data.get("idle_timeout_minutes"), data.get("upscaling_speed")
    return AutoscalerConfig(
        node_types=types,
        version=version,
        max_workers=most,
        upscaling_speed=None if speed is None else float(speed),
        idle_timeout_s=None if minutes is None else float(minutes) * 60,
    )


def _version(resource: object) -> Literal["v1", "v2"]:
    """What ``autoscalerOptions.version`` says, else what the release of Ray has as its default."""
    cluster = _raycluster(resource)
    said = value_at(cluster, ("autoscalerOptions", "version"))
    release = str(value_at(cluster, ("rayVersion",)) or "").split(".")[:2]
    known = len(release) == len(_V2_SINCE) and all(part.isdigit() for part in release)
    old = known and tuple(map(int, release)) < _V2_SINCE
    return "v1" if said == "v1" or (said is None and old) else "v2"


def clouds_of(
    section: ProgramSection, spec: ClusterSpec, documents: Sequence[Document]
) -> CloudSpec:
    """How machines of each group come: KubeRay's as pods on new machines, unless told otherwise."""
    pods = any(is_kuberay(d) for d in documents)
    starts, stockouts = {}, []
    for group in spec.groups:
        its = section.starts.get(group.name)
        cold = COLD_GPU_POD if group.node.gpu is not None else COLD_CPU_POD
        base = cold if pods else NodeStart()
        if its is not None:
            base = {None: base, "warm": WARM_POD, "cold": cold}[its.pods]
            given = {name: getattr(its, name) for name in PHASES}
            changed = {
                name: replace(getattr(base, name), median_s=s)
                for name, s in given.items()
                if s is not None
            }
            base = replace(base, **changed)
            if its.none_from is not None or its.none_until is not None:
                stockouts.append(_stockout(group.name, its))
        starts[group.name] = base
    spares = {
        g.name: max(_SPARE_LEAST, round(_SPARE_FRAC * max(g.count, g.max_count or 0)))
        for g in spec.groups
        if g.name in section.spot
    }
    return CloudSpec(starts=starts, pods=pods, stockouts=tuple(stockouts), spares=spares)


def _stockout(name: str, its: StartSection) -> Stockout:
    until_s = math.inf if its.none_until is None else its.none_until
    return Stockout(node_type=name, from_s=its.none_from or 0.0, until_s=until_s)


def spot_of(section: ProgramSection) -> dict[str, SpotSpec]:
    """How often the cloud takes nodes of each group back."""
    return {
        name: SpotSpec(per_hour=its.per_hour)
        if its.notice is None
        else SpotSpec(per_hour=its.per_hour, notice_s=its.notice)
        for name, its in section.spot.items()
    }


def groups_misnamed(
    section: ProgramSection, spec: ClusterSpec, document: Document
) -> Iterator[Problem]:
    """Groups under ``starts`` and ``spot`` that the cluster does not have, or that cannot go."""
    names = [group.name for group in spec.groups]
    heads = [group.name for group in spec.groups if group.head]
    for key in ("starts", "spot"):
        for name in getattr(section, key):
            if name not in names:
                hint = did_you_mean(name, names) or f"; groups: {', '.join(names)}"
                yield document.problem((key, name), f"no group {name!r}{hint}", key=True)
            elif key == "spot" and name in heads:
                message = "the head is not taken back; use `faults` with fail_node"
                yield document.problem((key, name), message, key=True)


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
        resources |= {
            "GPU": float(node.gpu_count),
            f"accelerator_type:{node.gpu.accelerator_type}": 1.0,
        }
    return NodeTypeConfig(
        name=group.name,
        resources=resources | group.resources,
        labels={"ray.io/node-group": group.name} | group.labels,
        min_workers=group.min_count,
        max_workers=group.max_count if group.max_count is not None else group.count,
    )
