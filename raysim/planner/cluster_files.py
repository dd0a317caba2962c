"""The file that makes the chosen cluster: the user's with the choice in it, or a RayCluster."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from raysim.hardware.cluster import NodeGroup
from raysim.results.result import yaml_text
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.sources import CLUSTER
from raysim.units import GIB

IMAGE = "rayproject/ray:2.60.0"
MACHINE = {
    "aws": ("InstanceType",), "gcp": ("machineType",),
    "azure": ("azure_arm_parameters", "vmSize"),
}  # fmt: skip
"""Where ``ray up`` files of a provider name the machine, under ``node_config``."""
SELECTED_BY = "node.kubernetes.io/instance-type"
STORE = "object-store-memory"
STARTS = {
    "head_start_ray_commands": [
        "ray stop",
        (
            "ulimit -n 65536; ray start --head --port=6379 --object-manager-port=8076 "
            "--autoscaling-config=~/ray_bootstrap_config.yaml"
        ),
    ],
    "worker_start_ray_commands": [
        "ray stop",
        "ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076",
    ],
}
"""What ``ray up`` runs where the file does not say (``ray/autoscaler/aws/defaults.yaml``)."""


def cluster_file(chosen: AnyScenario) -> tuple[str, str]:
    """Name and content of the file that makes the chosen cluster."""
    source = chosen.sources.get(CLUSTER)
    if source is None:
        return "raycluster.yaml", yaml_text(ray_cluster(chosen))
    documents = [copy.deepcopy(d.data) for d in source.documents]
    for document in documents:
        if isinstance(document, dict):
            _kuberay(document, chosen)
            _ray_up(document, chosen)
    kube = any(isinstance(d, dict) and "apiVersion" in d for d in documents)
    name = "raycluster.yaml" if kube else "cluster.yaml"
    return name, "---\n".join(yaml_text(d) for d in documents)


def _sizes(chosen: AnyScenario) -> dict[str, int]:
    """Nodes of the groups whose number was chosen; a training job needs all of its nodes."""
    said = {name for name, h in chosen.spec.cluster.hardware.items() if h.replicas is not None}
    training = isinstance(chosen, Scenario)
    return {g.name: g.count for g in chosen.cluster.groups if training or g.name in said}


def _machines(chosen: AnyScenario) -> dict[str, str]:
    """Instance types of the groups whose type the scenario says, of those that are rented."""
    said = {name for name, h in chosen.spec.cluster.hardware.items() if h.node is not None}
    groups = [g for g in chosen.cluster.groups if g.name in said]
    return {g.name: g.node.name for g in groups if g.node.provider in MACHINE}


def _store_bytes(chosen: AnyScenario) -> int | None:
    return None if isinstance(chosen, Scenario) else chosen.spec.ray.object_store_memory


def _start_params(chosen: AnyScenario) -> dict[str, str]:
    size = _store_bytes(chosen)
    return {} if size is None else {STORE: str(size)}


def _kuberay(document: dict[str, Any], chosen: AnyScenario) -> None:
    spec = document.get("spec", {})
    spec = spec.get("rayClusterSpec", spec) if isinstance(spec, dict) else {}
    counts, machines = _sizes(chosen), _machines(chosen)
    head = spec.get("headGroupSpec")
    groups = spec.get("workerGroupSpecs") or []
    for group in groups:
        name = group.get("groupName")
        if name in counts:
            count = counts[name]
            group.update(replicas=count, minReplicas=count, maxReplicas=count)
        if name in machines:
            pod = group.setdefault("template", {}).setdefault("spec", {})
            pod.setdefault("nodeSelector", {})[SELECTED_BY] = machines[name]
    for group in [head, *groups] if head else groups:
        if params := _start_params(chosen):
            group.setdefault("rayStartParams", {}).update(params)


def _ray_up(document: dict[str, Any], chosen: AnyScenario) -> None:
    types = document.get("available_node_types")
    if not types:
        return
    counts, machines = _sizes(chosen), _machines(chosen)
    head = document.get("head_node_type")
    keys = MACHINE.get((document.get("provider") or {}).get("type", ""), ())
    for name, node_type in types.items():
        if name in counts and name != head:
            node_type.update(min_workers=counts[name], max_workers=counts[name])
        if name in machines and keys:
            _put(node_type.setdefault("node_config", {}), keys, machines[name])
    workers = [t.get("max_workers", 0) for name, t in types.items() if name != head]
    if counts:
        document["max_workers"] = sum(workers)
    size = _store_bytes(chosen)
    for key, usual in STARTS.items() if size is not None else ():
        document[key] = [_with_store(c, size) for c in document.get(key) or usual]


def _put(mapping: dict[str, Any], keys: tuple[str, ...], value: str) -> None:
    for key in keys[:-1]:
        mapping = mapping.setdefault(key, {})
    mapping[keys[-1]] = value


def _with_store(command: str, size: int | None) -> str:
    """``ray start`` with the size of the object store, in place of one that it has."""
    if "ray start" not in command:
        return command
    bare = re.sub(rf" --{STORE}[= ]\S+", "", command)
    return bare.replace("ray start", f"ray start --{STORE}={size}", 1)


def ray_cluster(chosen: AnyScenario) -> dict[str, Any]:
    """A RayCluster of the chosen nodes, for a scenario that says them by itself."""
    head = {
        "rayStartParams": {"num-cpus": "0"} | _start_params(chosen),
        "template": _pod("ray-head", IMAGE, {"cpu": "8", "memory": "32Gi"}),
    }
    return {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": chosen.name},
        "spec": {
            "rayVersion": IMAGE.rsplit(":", maxsplit=1)[1], "headGroupSpec": head,
            "workerGroupSpecs": [
                _worker_group(g) | {"rayStartParams": _start_params(chosen)}
                for g in chosen.cluster.groups
            ],
        },
    }  # fmt: skip


def _worker_group(group: NodeGroup) -> dict[str, Any]:
    node = group.node
    limits = {"cpu": str(node.vcpus), "memory": f"{int(node.memory_bytes / GIB)}Gi"}
    image = IMAGE
    if node.gpu is not None:
        limits["nvidia.com/gpu"] = str(node.gpu_count)
        image = f"{IMAGE}-gpu"
    return {
        "groupName": group.name.replace("_", "-"), "replicas": group.count,
        "minReplicas": group.count, "maxReplicas": group.count,
        "template": _pod("ray-worker", image, limits),
    }  # fmt: skip


def _pod(name: str, image: str, limits: Mapping[str, str]) -> dict[str, Any]:
    resources = {"limits": dict(limits), "requests": dict(limits)}
    container = {"name": name, "image": image, "resources": resources}
    return {"spec": {"containers": [container]}}
