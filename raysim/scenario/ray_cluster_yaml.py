"""The cluster YAML of ``ray up``: node types, their instance types and how far they scale.

Real counterpart: ``python/ray/autoscaler/ray-schema.json`` and the providers' ``config.py``, which
fill in resources that the file leaves out from the instance type.

Not modelled: everything under setup, auth, docker and file mounts (said in one note).
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from raysim.scenario.documents import Document, KeyPath, did_you_mean, shorten
from raysim.scenario.node_request import ClusterReading, NodeRequest

_READ = (
    "cluster_name", "available_node_types", "head_node_type", "max_workers", "provider",
    "idle_timeout_minutes", "upscaling_speed", "auto_select_worker_config",
)  # fmt: skip
_DEFAULT_HEADS = ("ray.head.default", "ray_head_default")
"""``head_node_type`` of the providers' ``defaults.yaml``, for files that leave it out."""
_AZURE_SMALL = "Standard_D2s_v3"
_LEGACY_HEAD = "ray-legacy-head-node-type"
_LEGACY_WORKER = "ray-legacy-worker-node-type"
_DEFAULT_TYPES: dict[str, dict[str, dict[str, Any]]] = {
    "aws": {
        "ray.head.default": {"node_config": {"InstanceType": "m5.large"}},
        "ray.worker.default": {"node_config": {"InstanceType": "m5.large"}},
    },
    "gcp": {
        "ray_head_default": {"node_config": {"machineType": "n1-standard-2"}},
        "ray_worker_small": {"node_config": {"machineType": "n1-standard-2"}},
    },
    "azure": {
        "ray.head.default": {"node_config": {"azure_arm_parameters": {"vmSize": _AZURE_SMALL}}},
        "ray.worker.default": {"node_config": {"azure_arm_parameters": {"vmSize": _AZURE_SMALL}}},
    },
}
"""``available_node_types`` of ``autoscaler/<provider>/defaults.yaml``, for files without any."""
_PROVIDERS = {"aws": "aws", "gcp": "gcp", "azure": "azure", "local": "local"}


def is_ray_cluster_yaml(document: Document) -> bool:
    """Whether a document looks like the YAML of ``ray up``."""
    data = document.data
    return isinstance(data, dict) and ("available_node_types" in data or "provider" in data)


def read_ray_cluster(document: Document) -> ClusterReading:
    """Node groups of the file; problems are collected in the result."""
    reading = ClusterReading(_modern(document))
    data = reading.mapping(())
    provider = str(reading.mapping(("provider",)).get("type", ""))
    for key, highest in (("idle_timeout_minutes", 1e7), ("upscaling_speed", 1e6)):
        value = data.get(key, 0)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= float(str(value)) <= highest:
            reading.error((key,), f"expected a number of at least 0, got {shorten(value)}")
    if provider == "local":
        _local_nodes(reading)
    else:
        _node_types(reading, provider)
    if data.get("auto_select_worker_config") is True:
        message = "machines that Anyscale would choose are not here; list them as worker_nodes"
        reading.note(("auto_select_worker_config",), message)
    ignored = [key for key in data if key not in _READ]
    if ignored:
        reading.note((), f"no effect on the prediction: {', '.join(map(str, ignored))}")
    return reading


def _modern(document: Document) -> Document:
    """Node types of a file from before Ray 2, which has ``head_node`` and ``worker_nodes``.

    As ``merge_legacy_yaml_with_defaults`` and ``fillout_defaults`` do
    (``autoscaler/_private/util.py``).
    """
    data = document.data
    old = {"head_node": _LEGACY_HEAD, "worker_nodes": _LEGACY_WORKER}
    if not isinstance(data, dict) or "available_node_types" in data:
        return document
    if not old.keys() & data.keys():
        return document if "head_node_type" in data else _with_defaults(document)
    types = {
        name: {"node_config": data.get(key), "min_workers": 0, "max_workers": 0}
        for key, name in old.items()
    }
    if "head_node" in data and isinstance(data["head_node"], dict):
        types[_LEGACY_HEAD]["resources"] = data["head_node"].get("resources") or {}
    types[_LEGACY_WORKER] |= {
        "min_workers": data.get("min_workers", 0),
        "max_workers": data.get("max_workers", 2),
    }
    marks = dict(document.marks)
    for path, mark in document.marks.items():
        if path and path[0] in old:
            marks["available_node_types", old[str(path[0])], "node_config", *path[1:]] = mark
            marks.setdefault(("available_node_types", old[str(path[0])]), mark)
    modern = {key: value for key, value in data.items() if key not in (*old, "min_workers")}
    modern |= {"available_node_types": types, "head_node_type": _LEGACY_HEAD}
    return replace(document, data=modern, marks=marks)


def _with_defaults(document: Document) -> Document:
    """A file that leaves its nodes to Ray: the provider's defaults."""
    provider = document.data.get("provider")
    kind = provider.get("type") if isinstance(provider, dict) else None
    types = _DEFAULT_TYPES.get(str(kind))
    if types is None:
        return document
    marks = dict(document.marks)
    if ("provider",) in marks:
        marks["available_node_types",] = marks["provider",]
    return replace(document, data=document.data | {"available_node_types": types}, marks=marks)


def _local_nodes(reading: ClusterReading) -> None:
    """``provider: {type: local, head_ip, worker_ips}``: the file names addresses, not hardware."""
    provider = reading.mapping(("provider",), required=True)
    workers = provider.get("worker_ips", [])
    if not isinstance(workers, list):
        reading.error(("provider", "worker_ips"), f"expected a list, got {shorten(workers)}")
        workers = []
    path: KeyPath = ("provider",)
    reading.groups.append(
        NodeRequest(
            name="head", path=path, head=True, count=1, provider="local",
            **_started_with(reading, "head_start_ray_commands"),
        )
    )  # fmt: skip
    if workers:
        reading.groups.append(
            NodeRequest(
                name="worker",
                path=("provider", "worker_ips"),
                head=False,
                count=len(workers),
                min_count=len(workers),
                provider="local",
                **_started_with(reading, "worker_start_ray_commands"),
            )
        )


_START_OPTIONS = {"--num-cpus": "CPU", "--num-gpus": "GPU", "--memory": "memory"}


def _started_with(reading: ClusterReading, key: str) -> dict[str, Any]:
    """What ``ray start`` is told of a machine that nothing else describes."""
    commands = reading.document.data.get(key)
    found: dict[str, float] = {}
    for command in commands if isinstance(commands, list) else ():
        for words in re.findall(r"\bray start\b([^;&|]*)", str(command)):
            told = dict(re.findall(r"(--[a-z-]+)[= ]['\"]?([\d.]+)", words))
            found |= {_START_OPTIONS[o]: float(v) for o, v in told.items() if o in _START_OPTIONS}
            for custom in re.findall(r"--resources[= ]'(\{[^']*\})'", words):
                found |= {str(name): float(v) for name, v in json.loads(custom).items()}
    if found.get("GPU", 0) % 1:
        reading.error((key,), f"not a number of GPUs: {found['GPU']:g}")
    gpus = found.get("GPU")
    sizes = {"gpus": None if gpus is None else int(gpus), "vcpus": _vcpus(found)}
    return {"resources": found, **sizes} if found else {}


def _node_types(reading: ClusterReading, provider: str) -> None:
    """``available_node_types``; one node of ``head_node_type`` is the head."""
    types = reading.mapping(("available_node_types",), required=True)
    head_type = reading.document.data.get("head_node_type") if types else None
    if types and head_type is None:
        known = [*_DEFAULT_HEADS, *types][: len(_DEFAULT_HEADS) + (len(types) == 1)]
        head_type = next((name for name in known if name in types), None)
    if types and (not isinstance(head_type, str) or head_type not in types):
        hint = did_you_mean(head_type, types) or f"; known: {', '.join(types)}"
        message = f"{shorten(head_type)} is not one of available_node_types{hint}"
        reading.error(("head_node_type",), message)
    total = reading.count(("max_workers",), reading.document.data.get("max_workers"), 2)
    reading.max_workers = total
    for name in types:
        _node_type(reading, name, provider, total, head=name == head_type)
    started = sum(group.count for group in reading.groups if not group.head)
    if started > total and not reading.errors:
        message = f"{total}, but min_workers of the node types add up to {started}"
        reading.error(("max_workers",), message)


def _node_type(
    reading: ClusterReading, name: str, provider: str, total: int, *, head: bool
) -> None:
    """One entry of ``available_node_types`` as one request, two if the head's type has workers."""
    path: KeyPath = ("available_node_types", name)
    entry = reading.mapping(path, required=True)
    resources = _resources(reading, path)
    lowest = reading.count((*path, "min_workers"), entry.get("min_workers"), 0)
    highest = reading.count((*path, "max_workers"), entry.get("max_workers"), 0 if head else total)
    if lowest > highest:
        if "max_workers" in entry:
            reading.error((*path, "min_workers"), f"{lowest} is more than max_workers: {highest}")
        highest = lowest
    config = reading.mapping((*path, "node_config"))
    gpus = resources.get("GPU")
    instance_type = _instance_type(reading, path, config)
    accelerator, attached = _guest_accelerator(config)
    common = NodeRequest(
        name=name,
        path=path,
        head=False,
        count=lowest,
        min_count=lowest,
        max_count=highest,
        resources=resources,
        instance_type=instance_type,
        accelerator=accelerator,
        provider=_PROVIDERS.get(provider, provider or None),
        gpus=int(gpus) if gpus is not None else attached,
        vcpus=_vcpus(resources) if instance_type is None else None,
        threads_per_core=_threads_per_core(config),
        spot=_spot(config),
        labels={str(k): str(v) for k, v in reading.mapping((*path, "labels")).items()},
    )
    if head:
        fields = {"head": True, "count": 1, "min_count": 1, "max_count": 1}
        reading.groups.append(_changed(common, **fields))
        if highest:
            reading.groups.append(_changed(common, name=f"{name}-workers"))
    else:
        reading.groups.append(common)


def _spot(config: dict[str, object]) -> bool:
    """AWS's market type, GCP's preemptible or SPOT scheduling, Azure's priority."""
    market, schedule = config.get("InstanceMarketOptions"), config.get("scheduling")
    azure = config.get("azure_arm_parameters")
    plans = schedule if isinstance(schedule, list) else [schedule]
    return (
        (isinstance(market, dict) and str(market.get("MarketType")).lower() == "spot")
        or any(
            isinstance(p, dict)
            and (p.get("preemptible") is True or p.get("provisioningModel") == "SPOT")
            for p in plans
        )
        or (isinstance(azure, dict) and str(azure.get("priority")).lower() == "spot")
    )


def _changed(request: NodeRequest, **changes: object) -> NodeRequest:
    return replace(request, **changes)  # type: ignore[arg-type]


def _vcpus(resources: dict[str, float]) -> int | None:
    """What a node type says of its size where it names no instance type."""
    return int(resources.get("CPU", 0)) or None


def _resources(reading: ClusterReading, path: KeyPath) -> dict[str, float]:
    """``resources`` as numbers."""
    found: dict[str, float] = {}
    for name, value in reading.mapping((*path, "resources")).items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= float(str(value)) < 1e18:
            message = f"expected a number of at least 0, got {shorten(value)}"
            reading.error((*path, "resources", name), message)
        else:
            found[str(name)] = float(str(value))
    if found.get("GPU", 0) > 1024 or found.get("GPU", 0) % 1:
        reading.error((*path, "resources", "GPU"), f"not a number of GPUs: {found['GPU']:g}")
    return found


def _instance_type(reading: ClusterReading, path: KeyPath, config: dict[str, object]) -> str | None:
    """AWS ``InstanceType``, GCP ``machineType``, Azure ``azure_arm_parameters.vmSize``.

    Of GCP's TPUs ``acceleratorType`` or ``acceleratorConfig.type``, which no catalog has.
    """
    within = {"azure_arm_parameters": "vmSize", "acceleratorConfig": "type"}
    names = [config.get(key) for key in ("InstanceType", "machineType", "acceleratorType")]
    for key, name in within.items():
        section = config.get(key)
        names.append(section.get(name) if isinstance(section, dict) else None)
    found = next((name for name in names if name is not None), None)
    if found is None:
        return None
    if not isinstance(found, str):
        reading.error((*path, "node_config"), f"expected an instance type, got {shorten(found)}")
        return None
    return found.rsplit("/", 1)[-1]


def _threads_per_core(config: dict[str, object]) -> int | None:
    """AWS's ``CpuOptions`` or GCP's ``advancedMachineFeatures``, where they say it."""
    for section, key in (
        ("CpuOptions", "ThreadsPerCore"), ("advancedMachineFeatures", "threadsPerCore"),
    ):  # fmt: skip
        said = config.get(section)
        if isinstance(said, dict) and said.get(key) in (1, 2):
            return int(said[key])
    return None


def _guest_accelerator(config: dict[str, object]) -> tuple[str | None, int | None]:
    """Type and number of GCP's ``guestAccelerators``."""
    listed = config.get("guestAccelerators")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        kind, count = listed[0].get("acceleratorType"), listed[0].get("acceleratorCount")
        if isinstance(kind, str) and isinstance(count, int) and 0 < count <= 16:
            return kind.rsplit("/", 1)[-1], count
    return None, None
