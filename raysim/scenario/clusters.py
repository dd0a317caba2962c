"""The ``cluster`` section and its file into a ``ClusterSpec``.

Nodes that an autoscaler would add are added when the job's workers need them.

Not modelled: the time that takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from raysim.errors import Problem, ScenarioError
from raysim.hardware import catalog
from raysim.hardware.cluster import ClusterSpec, FabricSpec, NodeGroup
from raysim.hardware.specs import NodeSpec
from raysim.scenario.described_gpu import said_of
from raysim.scenario.documents import Document, KeyPath, did_you_mean
from raysim.scenario.hardware_choice import choose_node, customised
from raysim.scenario.kuberay import is_kuberay, read_kuberay
from raysim.scenario.node_request import NODES_MAX, ClusterReading, NodeRequest
from raysim.scenario.ray_cluster_yaml import is_ray_cluster_yaml, read_ray_cluster
from raysim.scenario.schema_cluster import ClusterSection, HardwareSection

WORKERS = "workers"
"""Name of the node group of a cluster written in place."""


@dataclass(slots=True)
class ClusterResult:
    """The cluster, when nothing was wrong, and what was said."""

    spec: ClusterSpec | None = None
    errors: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    on_demand: dict[str, Problem] = field(default_factory=dict)
    """Groups whose file asks for spot machines, without a price: what is to be said of them."""

    def unsaid(self, spot: Iterable[str]) -> list[Problem]:
        """Of those groups, that are not under a scenario's ``spot``."""
        known = set(spot)
        return [said for name, said in self.on_demand.items() if name not in known]


def make_cluster(
    section: ClusterSection,
    document: Document,
    files: list[Document] | None,
    workers: int | None,
) -> ClusterResult:
    """The cluster of a scenario.

    Parameters
    ----------
    section, document
        The ``cluster`` section and the same as a document, for positions.
    files
        Documents of the cluster file; None when the cluster is written in place.
    workers
        GPUs the job asks for; an autoscaled group grows to give them.
    """
    result = ClusterResult()
    if files is None:
        groups = _inline_groups(section, document, result)
    else:
        groups = _file_groups(section, document, files, workers, result)
    groups = _priced(section, document, groups, result)
    if not result.errors:
        result.spec = ClusterSpec(groups=tuple(groups), fabric=_fabric(section, groups, result))
    return result


def _inline_groups(
    section: ClusterSection, document: Document, result: ClusterResult
) -> list[NodeGroup]:
    """``nodes``, ``node`` and an optional head."""
    groups = []
    if section.head is not None:
        head = _from_catalog(section.head, document, ("head",), result)
        if head is not None:
            groups.append(NodeGroup(name="head", node=head, count=1, head=True))
    base = _from_catalog(str(section.node), document, ("node",), result)
    if base is not None:
        try:
            node = customised(
                base,
                gpu=section.gpu,
                gpus=section.gpus,
                nics=section.nics,
                threads=section.threads_per_core,
            )
        except ScenarioError as error:
            result.errors += _placed(error, document, _at_fault(error))
        else:
            if guessed := said_of(section.gpu, node.gpu):
                result.notes.append(document.problem(("gpu",), guessed, key=True))
            count = section.nodes or 1
            found = {"CPU": float(node.vcpus), "GPU": float(node.gpu_count)}
            resources = {**found, **section.resources}
            groups.append(
                NodeGroup(
                    name=WORKERS,
                    node=node,
                    count=count,
                    resources=resources,
                    min_count=count,
                    max_count=count,
                )
            )
    return groups


def _at_fault(error: ScenarioError) -> KeyPath:
    """The key of a node's part that a message speaks of, else the node's."""
    said = error.problems[0].message
    parts = {"gpu": "gpu", "nic": "nics"}
    named = (
        key for part, key in parts.items() if said.startswith((f"unknown {part} ", f"{part}: "))
    )
    return (next(named, "node"),)


def _from_catalog(
    name: str, document: Document, path: KeyPath, result: ClusterResult
) -> NodeSpec | None:
    try:
        return catalog.node(name)
    except ScenarioError as error:
        result.errors += _placed(error, document, path)
        return None


def _placed(error: ScenarioError, document: Document, path: KeyPath) -> list[Problem]:
    """Problems of a module that knows no files, with the position of what caused them."""
    return [
        p if p.where else document.problem(path, f"{p.key}: {p.message}" if p.key else p.message)
        for p in error.problems
    ]


def _file_groups(
    section: ClusterSection,
    document: Document,
    files: list[Document],
    workers: int | None,
    result: ClusterResult,
) -> list[NodeGroup]:
    """Groups of a Ray file with the hardware the scenario adds."""
    reading = read_groups(files)
    result.errors += reading.errors
    result.notes += reading.notes
    if reading.errors:
        return []
    names = [request.name for request in reading.groups]
    for name in section.hardware:
        if name not in names:
            hint = did_you_mean(name, names) or f"; groups: {', '.join(names)}"
            message = f"{reading.document.file} has no group {name!r}{hint}"
            result.errors.append(document.problem(("hardware", name), message, key=True))
    if result.errors:
        return []
    groups = [
        group
        for request in reading.groups
        if (group := _group(section, document, reading, request, result)) is not None
    ]
    return _grown(groups, workers, reading, result)


def read_groups(files: Sequence[Document]) -> ClusterReading:
    """Groups of the first document that describes a cluster."""
    for document in files:
        if is_kuberay(document):
            return read_kuberay(document)
        if is_ray_cluster_yaml(document):
            return read_ray_cluster(document)
    reading = ClusterReading(files[0] if files else Document(file="cluster", data=None))
    kinds = [str(d.data["kind"]) for d in files if isinstance(d.data, dict) and d.data.get("kind")]
    found = f" (kind: {', '.join(kinds)})" if kinds else ""
    near = (did_you_mean(kind, ("RayCluster", "RayJob", "RayService")) for kind in kinds)
    found += next((hint for hint in near if hint), "")
    reading.error(
        (),
        "neither a `ray up` cluster file (available_node_types) nor a KubeRay RayCluster, "
        f"RayJob or RayService{found}",
    )
    return reading


def _group(
    section: ClusterSection,
    document: Document,
    reading: ClusterReading,
    request: NodeRequest,
    result: ClusterResult,
) -> NodeGroup | None:
    """One group with its node chosen."""
    hardware = section.hardware.get(request.name)
    some = hardware is not None and bool(hardware.replicas or hardware.max_replicas)
    if request.count == 0 and not request.max_count and not some:
        return None
    try:
        node, said_of_it = choose_node(request, hardware)
    except ScenarioError as error:
        said = hardware is not None and hardware.node is not None
        if said:
            result.errors += _placed(error, document, ("hardware", request.name))
        else:
            result.errors += _placed(error, reading.document, request.path)
        return None
    if said_of_it:
        result.notes.append(reading.document.problem(request.path, said_of_it, key=True))
    if hardware is not None and (guessed := said_of(hardware.gpu, node.gpu)):
        place = ("hardware", request.name, "gpu")
        result.notes.append(document.problem(place, guessed, key=True))
    if request.spot and request.name not in section.prices:
        message = (
            f"{request.name} asks for spot machines; they are priced on demand and nothing takes "
            f"them back. Say cluster: {{prices: {{{request.name}: 1.50 usd/h}}}} and "
            f"spot: {{{request.name}: {{per_hour: 0.05}}}} in a scenario"
        )
        problem = reading.document.problem(request.path, message, key=True)
        result.on_demand[request.name] = problem
    count, lowest, highest = _bounds(request, hardware)
    if hardware is not None and lowest > (count if highest is None else highest):
        message = f"min_replicas {lowest} is above max_replicas {highest}"
        result.errors.append(document.problem(("hardware", request.name), message))
        return None
    resources = request.resources or {"CPU": float(node.vcpus)}
    if node.gpu_count:
        resources = {**resources, "GPU": resources.get("GPU", float(node.gpu_count))}
    return NodeGroup(
        name=request.name,
        node=node,
        count=count,
        head=request.head,
        resources=resources,
        labels=request.labels,
        min_count=min(lowest, count),
        max_count=highest,
    )


def _bounds(request: NodeRequest, hardware: HardwareSection | None) -> tuple[int, int, int | None]:
    """Nodes at the start, at least and at most: the file's, in whose place the scenario's stand."""
    count, lowest, highest = request.count, request.min_count, request.max_count
    if hardware is None:
        return count, lowest, highest
    if hardware.replicas is not None:
        return hardware.replicas, min(lowest, hardware.replicas), hardware.replicas
    if hardware.max_replicas is not None:
        highest = hardware.max_replicas
        count, lowest = min(count, highest), min(lowest, highest)
    if hardware.min_replicas is not None:
        lowest = hardware.min_replicas
        count = lowest if request.count == request.min_count else max(count, lowest)
    return count, lowest, highest


def _grown(
    groups: list[NodeGroup], workers: int | None, reading: ClusterReading, result: ClusterResult
) -> list[NodeGroup]:
    """Groups after the autoscaler has added what the workers need, first group first."""
    missing = (workers or 0) - sum(g.count * g.node.gpu_count for g in groups)
    started = sum(g.count for g in groups if not g.head)
    left = NODES_MAX if reading.max_workers is None else reading.max_workers - started
    grown = []
    for group in groups:
        room = min(left, (group.max_count or group.count) - group.count)
        if missing > 0 and room > 0 and group.node.gpu_count:
            added = min(room, -(-missing // group.node.gpu_count))
            missing -= added * group.node.gpu_count
            left -= added
            path = next(r.path for r in reading.groups if r.name == group.name)
            message = f"autoscaled from {group.count} to {group.count + added} nodes for the job"
            result.notes.append(reading.document.problem(path, message, key=True))
            grown.append(replace(group, count=group.count + added))
        else:
            grown.append(group)
    return grown


def _priced(
    section: ClusterSection, document: Document, groups: list[NodeGroup], result: ClusterResult
) -> list[NodeGroup]:
    """Prices of the scenario in place of the catalog's."""
    names = [group.name for group in groups]
    for name in section.prices:
        if name not in names and not result.errors:
            hint = did_you_mean(name, names) or f"; groups: {', '.join(names)}"
            message = f"no group {name!r}{hint}"
            result.errors.append(document.problem(("prices", name), message, key=True))
    return [
        replace(group, usd_per_hour=section.prices.get(group.name, group.usd_per_hour))
        for group in groups
    ]


def _fabric(section: ClusterSection, groups: list[NodeGroup], result: ClusterResult) -> FabricSpec:
    """What the scenario says, else rails where every GPU has its own NIC, else one switch."""
    said = section.fabric
    if said is not None:
        return FabricSpec(
            kind=said.kind,
            oversubscription=said.oversubscription,
            nodes_per_leaf=said.nodes_per_leaf,
        )
    railed = any(g.node.gpu_count > 1 and g.node.nic_count >= g.node.gpu_count for g in groups)
    kind = "rail_fat_tree" if railed else "star"
    result.notes.append(
        Problem(key="cluster.fabric", message=f"default {kind}, not oversubscribed")
    )
    return FabricSpec(kind="rail_fat_tree" if railed else "star")
