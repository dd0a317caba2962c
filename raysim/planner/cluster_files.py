"""The file that makes the chosen cluster: the user's with the choice in it, or a RayCluster."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from raysim.hardware.cluster import NodeGroup
from raysim.planner.deploy_yaml import deploy_yaml
from raysim.scenario.documents import value_at
from raysim.scenario.load import AnyScenario, Scenario
from raysim.scenario.sources import CLUSTER
from raysim.units import GIB

IMAGE = "rayproject/ray:2.60.0"
MACHINE = {
    "aws": ("InstanceType",), "gcp": ("machineType",),
    "azure": ("azure_arm_parameters", "vmSize"),
}  # fmt: skip
"""Where ``ray up`` files of a provider name the machine, under ``node_config``."""
SPOT: Mapping[str, tuple[tuple[str, ...], Any]] = {
    "aws": (("InstanceMarketOptions", "MarketType"), "spot"),
    "gcp": (("scheduling",), [{"preemptible": True}]),
    "azure": (("azure_arm_parameters", "priority"), "Spot"),
}
"""Where they ask for a machine that may be taken back (``ray/autoscaler/*/defaults.yaml``)."""
SPOT_LABEL = {
    "aws": ("eks.amazonaws.com/capacityType", "SPOT"),
    "gcp": ("cloud.google.com/gke-spot", "true"),
    "azure": ("kubernetes.azure.com/scalesetpriority", "spot"),
}
"""What EKS, GKE and AKS label such nodes with; AKS keeps other pods off them by a taint alike."""
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
        return "raycluster.yaml", deploy_yaml(ray_cluster(chosen))
    documents = [copy.deepcopy(d.data) for d in source.documents]
    for document in documents:
        if isinstance(document, dict):
            _kuberay(document, chosen)
            _ray_up(document, chosen)
    kube = any(isinstance(d, dict) and "apiVersion" in d for d in documents)
    name = "raycluster.yaml" if kube else "cluster.yaml"
    return name, "---\n".join(deploy_yaml(d) for d in documents)


class Bounds(NamedTuple):
    """Nodes of a group: at first, at least and at most."""

    first: int
    least: int
    most: int


def _sizes(chosen: AnyScenario) -> dict[str, Bounds]:
    """Of the groups whose number was chosen; a training job needs all of its nodes."""
    if isinstance(chosen, Scenario):
        return {g.name: Bounds(g.count, g.count, g.count) for g in chosen.cluster.groups}
    hardware = chosen.spec.cluster.hardware.items()
    said = {n for n, h in hardware if (h.replicas, h.min_replicas, h.max_replicas) != (None,) * 3}
    return {
        g.name: Bounds(g.count, g.min_count, g.count if g.max_count is None else g.max_count)
        for g in chosen.cluster.groups
        if g.name in said
    }


def _taken_back(chosen: AnyScenario) -> dict[str, bool]:
    """Whether nodes of a group may be taken back, where the scenario says of any."""
    if isinstance(chosen, Scenario) or "spot" not in chosen.document.data:
        return {}
    return {g.name: g.name in chosen.spec.spot for g in chosen.cluster.groups if not g.head}


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
    counts, machines, spot = _sizes(chosen), _machines(chosen), _taken_back(chosen)
    clouds = {g.name: g.node.provider for g in chosen.cluster.groups}
    head = spec.get("headGroupSpec")
    groups = spec.get("workerGroupSpecs") or []
    for group in groups:
        name = group.get("groupName")
        if name in counts:
            first, least, most = counts[name]
            group.update(replicas=first, minReplicas=least, maxReplicas=most)
        if name in machines:
            _pod_of(group).setdefault("nodeSelector", {})[SELECTED_BY] = machines[name]
        if name in spot and clouds[name] in SPOT_LABEL:
            _set_spot_pods(_pod_of(group), clouds[name], spot=spot[name])
    for group in [head, *groups] if head else groups:
        if params := _start_params(chosen):
            group.setdefault("rayStartParams", {}).update(params)


def _ray_up(document: dict[str, Any], chosen: AnyScenario) -> None:
    types = document.get("available_node_types")
    if not types:
        return
    counts, machines = _sizes(chosen), _machines(chosen)
    head = document.get("head_node_type")
    provider = (document.get("provider") or {}).get("type", "")
    keys, spot = MACHINE.get(provider, ()), _taken_back(chosen)
    for name, node_type in types.items():
        if name in counts and name != head:
            node_type.update(min_workers=counts[name].least, max_workers=counts[name].most)
        if name in spot and provider in SPOT:
            _set_spot(node_type.setdefault("node_config", {}), provider, spot=spot[name])
        if name in machines and keys:
            _put(node_type.setdefault("node_config", {}), keys, machines[name])
    workers = [t.get("max_workers", 0) for name, t in types.items() if name != head]
    if counts:
        document["max_workers"] = sum(workers)
    size = _store_bytes(chosen)
    for key, usual in STARTS.items() if size is not None else ():
        document[key] = [_with_store(c, size) for c in document.get(key) or usual]


def _set_spot(config: dict[str, Any], provider: str, *, spot: bool) -> None:
    """Ask the cloud for machines that it may take back, or for those that stay."""
    keys, value = SPOT[provider]
    if spot:
        _put(config, keys, value)
    elif isinstance(parent := value_at(config, keys[:-1]), dict):
        parent.pop(keys[-1], None)
        if len(keys) > 1 and not parent:
            config.pop(keys[0])


def _pod_of(group: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = group.setdefault("template", {}).setdefault("spec", {})
    return pod


def _set_spot_pods(pod: dict[str, Any], cloud: str, *, spot: bool) -> None:
    """Place a group's pods on nodes that may be taken back, or no longer there alone."""
    label, value = SPOT_LABEL[cloud]
    tolerated = {"key": label, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    if spot:
        pod.setdefault("nodeSelector", {})[label] = value
        if cloud == "azure" and tolerated not in pod.setdefault("tolerations", []):
            pod["tolerations"].append(tolerated)
    else:
        pod.get("nodeSelector", {}).pop(label, None)


def _put(mapping: dict[str, Any], keys: tuple[str, ...], value: Any) -> None:
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
    template = _pod("ray-worker", image, limits)
    if node.provider in MACHINE:
        template["spec"]["nodeSelector"] = {SELECTED_BY: node.name}
    return {
        "groupName": group.name.replace("_", "-"), "replicas": group.count,
        "minReplicas": group.count, "maxReplicas": group.count, "template": template,
    }  # fmt: skip


def _pod(name: str, image: str, limits: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    resources = {"limits": dict(limits), "requests": dict(limits)}
    container = {"name": name, "image": image, "resources": resources}
    return {"spec": {"containers": [container]}}
