"""KubeRay's custom resources: RayCluster, RayJob and RayService, ``ray.io/v1`` and ``v1alpha1``.

A pod is a node here. Container limits become Ray resources as the operator does it: ``num-cpus``
from the CPU limit (else the request) rounded up, ``memory`` from the limit, ``num-gpus`` from any
resource ending in ``gpu``, ``TPU`` and ``neuron_cores`` from theirs; ``rayStartParams`` wins over
the container, and the group's own ``resources`` and ``labels`` over both.

Real counterpart: ``ray-operator/controllers/ray/common/pod.go`` (``generateRayStartCommand``,
``addWellKnownAcceleratorResources``, ``updateRayStartParamsResources``) and
``apis/ray/v1/raycluster_types.go``.

Not modelled: images, volumes, init containers, services, network policies, slices of GPUs (MIG).
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from raysim.scenario.documents import Document, KeyPath, did_you_mean, shorten, value_at
from raysim.scenario.node_request import ClusterReading, NodeRequest

_CLUSTER_SPEC: dict[str, KeyPath] = {
    "RayCluster": ("spec",),
    "RayJob": ("spec", "rayClusterSpec"),
    "RayService": ("spec", "rayClusterConfig"),
}
_VERSIONS = ("ray.io/v1", "ray.io/v1alpha1")
_INSTANCE_LABELS = (
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    "karpenter.k8s.aws/instance-type",
)
_GPU_LABELS = (
    "cloud.google.com/gke-accelerator",
    "nvidia.com/gpu.product",
    "karpenter.k8s.aws/instance-gpu-name",
    "accelerator",
)
_SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot", "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true", "kubernetes.azure.com/scalesetpriority": "spot",
}  # fmt: skip
_CLUSTER_FIELDS = (
    "headGroupSpec", "workerGroupSpecs", "enableInTreeAutoscaling", "autoscalerOptions",
    "rayVersion", "gcsFaultToleranceOptions",
)  # fmt: skip
_GROUP_FIELDS = (
    "groupName", "replicas", "minReplicas", "maxReplicas", "numOfHosts", "rayStartParams",
    "template", "resources", "labels", "suspend",
)  # fmt: skip
_NEAR = 0.85
"""Likeness (difflib's ratio) from which a name is taken for another one mistyped."""
_ACCELERATORS = {"aws.amazon.com/neuroncore": "neuron_cores", "google.com/tpu": "TPU"}
"""Of these the operator makes Ray resources, of the first that a container has."""
_MIG = re.compile(r"nvidia\.com/mig-\d+g\.\d+gb")
_PLAIN = ("CPU", "GPU", "memory")
"""Resources that ``ray start`` has flags of their own for."""
# k8s.io/apimachinery/pkg/api/resource: decimal and binary suffixes, milli, exponents.
_SUFFIX = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15,
    "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)(?:[eE]([-+]?\d{1,3})|([a-zA-Z]*))")


def as_rayjob(document: Document) -> Document:
    """The RayJob that a RayCronJob makes whenever it is time; other documents as they are."""
    data = document.data
    if not isinstance(data, dict) or data.get("kind") != "RayCronJob":
        return document
    spec = data.get("spec")
    job = spec.get("jobTemplate") if isinstance(spec, dict) else None
    template = ("spec", "jobTemplate")
    marks = {path: mark for path, mark in document.marks.items() if path[:1] != ("spec",)}
    for path, mark in document.marks.items():
        if path[:2] == template:
            marks["spec", *path[2:]] = mark
    return replace(document, data={**data, "kind": "RayJob", "spec": job}, marks=marks)


def is_kuberay(document: Document) -> bool:
    """Whether a document is one of KubeRay's resources."""
    data = document.data
    return isinstance(data, dict) and str(data.get("kind")) in _CLUSTER_SPEC


def group_names(document: Document) -> list[str]:
    """Of the workers of one of KubeRay's resources; none of another document."""
    document = as_rayjob(document)
    if not is_kuberay(document):
        return []
    path = (*_CLUSTER_SPEC[str(document.data["kind"])], "workerGroupSpecs")
    groups = value_at(document.data, path)
    found = [g.get("groupName") for g in groups or () if isinstance(g, dict)]
    return [str(name) for name in found if name is not None]


def read_kuberay(document: Document) -> ClusterReading:
    """Node groups of the resource; problems are collected in the result."""
    reading = ClusterReading(document)
    data = reading.mapping(())
    version = data.get("apiVersion")
    if version not in _VERSIONS:
        hint = did_you_mean(version, _VERSIONS)
        reading.error(("apiVersion",), f"expected {' or '.join(_VERSIONS)}{hint}")
    root = _CLUSTER_SPEC[str(data["kind"])]
    if "clusterSelector" in reading.mapping(("spec",)):
        message = "the job runs on a cluster of another file; point at that RayCluster"
        reading.error(("spec", "clusterSelector"), message, key=True)
        return reading
    spec = reading.mapping(root, required=True)
    if not spec:
        return reading
    _mistyped(reading, root, spec, _CLUSTER_FIELDS)
    autoscaled = spec.get("enableInTreeAutoscaling") is True
    _group(reading, (*root, "headGroupSpec"), head=True, autoscaled=False)
    workers = spec.get("workerGroupSpecs", [])
    if not isinstance(workers, list):
        message = f"expected a list, got {shorten(workers)}"
        reading.error((*root, "workerGroupSpecs"), message)
        workers = []
    for i in range(len(workers)):
        _group(reading, (*root, "workerGroupSpecs", i), head=False, autoscaled=autoscaled)
    names = [group.name for group in reading.groups]
    for group in reading.groups:
        if names.count(group.name) > 1:
            reading.error(group.path, f"two groups are called {group.name!r}")
            break
    return reading


def fault_tolerance(documents: Sequence[Document]) -> dict[str, Any]:
    """Ray's settings under GCS fault tolerance: tables in Redis, workers that wait ten minutes.

    As ``ray.io/ft-enabled`` or ``gcsFaultToleranceOptions`` ask for it; the operator sets
    ``RAY_gcs_rpc_server_reconnect_timeout_s`` of workers to 600.
    """
    for document in documents:
        if is_kuberay(document):
            root = _CLUSTER_SPEC[str(document.data["kind"])]
            annotation = value_at(document.data, ("metadata", "annotations", "ray.io/ft-enabled"))
            options = value_at(document.data, (*root, "gcsFaultToleranceOptions"))
            if str(annotation).lower() == "true" or options is not None:
                return {"gcs_storage": "redis", "gcs_rpc_server_reconnect_timeout_s": 600}
    return {}


def parse_quantity(value: object) -> float:
    """A Kubernetes quantity: ``54Gi``, ``500m``, ``1e3``, ``2``.

    Raises
    ------
    ValueError
        It is not one.
    """
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIX:
        raise ValueError(f"expected a Kubernetes quantity such as '54Gi' or '500m', got {value!r}")
    number = float(f"{match[1]}e{match[2] or 0}") * _SUFFIX[match[3] or ""]
    if not math.isfinite(number) or number > 1e18:
        raise ValueError(f"too large: {value!r}")
    return number


def _group(reading: ClusterReading, path: KeyPath, *, head: bool, autoscaled: bool) -> None:
    """``headGroupSpec`` or one entry of ``workerGroupSpecs``."""
    spec = reading.mapping(path, required=True)
    if not spec:
        return
    _mistyped(reading, path, spec, _GROUP_FIELDS)
    name = "head" if head else str(spec.get("groupName", f"worker-{path[-1]}"))
    count, lowest, highest = 1, 1, 1
    if not head:
        count, lowest, highest = _sizes(reading, path, spec, autoscaled=autoscaled)
    pod: KeyPath = (*path, "template", "spec")
    template = reading.mapping(pod, required=True)
    limits = _pod_resources(reading, pod)
    start = reading.mapping((*path, "rayStartParams"))
    labels = dict(_labels(template))
    resources = _ray_resources(reading, (*path, "rayStartParams"), start, limits)
    reading.groups.append(
        NodeRequest(
            name=name,
            path=path,
            head=head,
            count=count,
            min_count=lowest,
            max_count=highest,
            resources=_overridden(reading, (*path, "resources"), resources),
            labels=_node_labels(reading, path, start),
            instance_type=next((labels[k] for k in _INSTANCE_LABELS if k in labels), None),
            accelerator=next((labels[k] for k in _GPU_LABELS if k in labels), None),
            provider="gcp" if "cloud.google.com/gke-accelerator" in labels else None,
            gpus=int(limits.get("GPU", 0)),
            vcpus=math.ceil(limits["CPU"]) if "CPU" in limits else None,
            memory_bytes=int(limits["memory"]) if "memory" in limits else None,
            spot=any(labels.get(label) == value for label, value in _SPOT_LABELS.items()),
        )
    )


def _mistyped(
    reading: ClusterReading, path: KeyPath, given: dict[str, object], known: Sequence[str]
) -> None:
    """Fields that are none but nearly one: ``kubectl apply`` refuses them too."""
    for key in given:
        near = difflib.get_close_matches(str(key), known, 1, _NEAR)
        if near and near[0] != key and near[0] not in given:
            reading.error((*path, key), f"unknown field; did you mean {near[0]!r}?", key=True)


def _sizes(
    reading: ClusterReading, path: KeyPath, spec: dict[str, object], *, autoscaled: bool
) -> tuple[int, int, int]:
    """Pods at the start, at least, at most. ``numOfHosts`` pods make one replica."""
    lowest = reading.count((*path, "minReplicas"), spec.get("minReplicas"), 0)
    replicas = reading.count((*path, "replicas"), spec.get("replicas"), lowest)
    highest = reading.count((*path, "maxReplicas"), spec.get("maxReplicas"), max(replicas, lowest))
    hosts = reading.count((*path, "numOfHosts"), spec.get("numOfHosts"), 1)
    if autoscaled and spec.get("maxReplicas") is None:
        message = f"without maxReplicas KubeRay sets no limit; taken as {highest}, say how many"
        reading.note(path, message)
    if lowest > highest:
        reading.error((*path, "minReplicas"), f"{lowest} is more than maxReplicas: {highest}")
    elif "replicas" in spec and not lowest <= replicas <= highest:
        message = f"{replicas} is not between minReplicas: {lowest} and maxReplicas: {highest}"
        reading.error((*path, "replicas"), message)
    if hosts < 1:
        reading.error((*path, "numOfHosts"), "must be at least 1")
    if spec.get("suspend") is True:
        reading.error((*path, "suspend"), "a suspended group has no nodes")
    return replicas * hosts, lowest * hosts, (highest if autoscaled else replicas) * hosts


def _pod_resources(reading: ClusterReading, pod: KeyPath) -> dict[str, float]:
    """CPU, memory and GPU of the Ray container, which is the first."""
    containers = reading.mapping(pod).get("containers")
    if not isinstance(containers, list) or not containers or not isinstance(containers[0], dict):
        reading.error((*pod, "containers"), "needs a container with resources")
        return {}
    path: KeyPath = (*pod, "containers", 0, "resources")
    limits = reading.mapping((*path, "limits"))
    requests = reading.mapping((*path, "requests"))
    found: dict[str, float] = {}
    for name in limits:
        if _MIG.fullmatch(str(name)):
            message = "a slice of a GPU (MIG) is not modelled; ask for whole ones, nvidia.com/gpu"
            reading.error((*path, "limits", name), message, key=True)
        if "gpu" in str(name) and not str(name).endswith("gpu"):
            _mistyped(reading, (*path, "limits"), {str(name): 0}, ("nvidia.com/gpu", "amd.com/gpu"))
    for name in ("cpu", "memory"):
        side = "limits" if name in limits else "requests"
        value = limits.get(name, requests.get(name))
        if value is not None:
            key = "CPU" if name == "cpu" else name
            found[key] = _checked(reading, (*path, side, name), value)
    for name, value in limits.items():
        if str(name).endswith("gpu"):
            found["GPU"] = found.get("GPU", 0.0) + _checked(reading, (*path, "limits", name), value)
    special = next((name for name in _ACCELERATORS if name in limits), None)
    if special is not None:
        name, where = _ACCELERATORS[special], (*path, "limits", special)
        found[name] = _checked(reading, where, limits[special])
        reading.note(where, f"counted as Ray's {name}; what it computes is not modelled")
    if found.get("GPU", 0.0) % 1 or found.get("GPU", 0.0) > 1024:
        reading.error((*path, "limits"), f"not a number of GPUs: {found['GPU']:g}")
        found["GPU"] = 0.0
    return found


def _checked(reading: ClusterReading, path: KeyPath, value: object) -> float:
    """A quantity, or 0 and an error."""
    try:
        return parse_quantity(value)
    except ValueError as error:
        reading.error(path, str(error))
        return 0.0


def _ray_resources(
    reading: ClusterReading, path: KeyPath, start: dict[str, object], limits: dict[str, float]
) -> dict[str, float]:
    """Logical resources: what ``ray start`` is told, else what the container may use."""
    found = {}
    if "CPU" in limits:
        found["CPU"] = float(math.ceil(limits["CPU"]))
    found |= {key: limits[key] for key in ("GPU", "memory") if limits.get(key)}
    for option, key in (("num-cpus", "CPU"), ("num-gpus", "GPU"), ("memory", "memory")):
        if option in start:
            try:
                found[key] = float(str(start[option]))
            except ValueError:
                message = f"expected a number, got {shorten(start[option])}"
                reading.error((*path, option), message)
            if not 0 <= found.get(key, 0.0) < 1e18:
                reading.error((*path, option), f"expected a number, got {shorten(start[option])}")
    custom = _custom(reading, (*path, "resources"), start.get("resources", {}))
    special = {name: limits[name] for name in _ACCELERATORS.values() if limits.get(name)}
    return found | ({} if special.keys() & custom.keys() else special) | custom


def _overridden(
    reading: ClusterReading, path: KeyPath, found: dict[str, float]
) -> dict[str, float]:
    """Ray's resources with those that the group says itself in their place.

    Names of custom ones replace all of ``rayStartParams``', as the operator writes them anew.
    """
    said = {}
    for name, value in reading.mapping(path).items():
        known = {"cpu": "CPU", "memory": "memory"}.get(str(name).lower(), str(name))
        known = "GPU" if str(name).lower().endswith("gpu") else known
        number = _checked(reading, (*path, name), value)
        said[known] = float(math.ceil(number)) if known in _PLAIN else number
    if any(name not in _PLAIN for name in said):
        found = {name: value for name, value in found.items() if name in _PLAIN}
    return found | said


def _node_labels(
    reading: ClusterReading, path: KeyPath, start: dict[str, object]
) -> dict[str, str]:
    """Labels of Ray's nodes: ``--labels`` of ``rayStartParams``, and the group's own over them."""
    pairs = [part.partition("=") for part in str(start.get("labels") or "").split(",")]
    told = {key.strip(): value.strip() for key, _, value in pairs if key.strip()}
    return told | {str(k): str(v) for k, v in reading.mapping((*path, "labels")).items()}


def _custom(reading: ClusterReading, path: KeyPath, text: object) -> dict[str, float]:
    """Custom resources: a mapping in JSON, often quoted twice."""
    data: Any
    try:
        data = json.loads(text) if isinstance(text, str) else text
        data = json.loads(data) if isinstance(data, str) else data
        return {str(name): float(amount) for name, amount in dict(data).items()}
    except (ValueError, TypeError, RecursionError):
        reading.error(path, f"expected JSON such as '{{\"TPU\": 4}}', got {shorten(text)}")
        return {}


def _labels(template: dict[str, object]) -> Iterator[tuple[str, str]]:
    """Node labels the pod insists on: ``nodeSelector``, and affinity required with one value."""
    selector = template.get("nodeSelector")
    if isinstance(selector, dict):
        yield from ((str(key), str(value)) for key, value in selector.items())
    here: object = template
    for step in (
        "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ):  # fmt: skip
        here = here.get(step) if isinstance(here, dict) else None
    for term in here if isinstance(here, list) else []:
        expressions = term.get("matchExpressions") if isinstance(term, dict) else None
        for expression in expressions if isinstance(expressions, list) else []:
            values = expression.get("values") if isinstance(expression, dict) else None
            if isinstance(values, list) and len(values) == 1 and expression.get("operator") == "In":
                yield str(expression.get("key")), str(values[0])
