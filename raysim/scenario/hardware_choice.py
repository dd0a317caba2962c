"""From what a cluster file asks for to a node of the catalog.

Order: ``cluster.hardware.<group>`` of the scenario, the instance type in the file, the GPU model a
label names together with the number of GPUs, and of groups without GPUs the size they ask for, on
a plain machine. Without any of these the file does not say what the nodes are, and the user is
asked. A pod smaller than its node gets the pod's share.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from raysim.errors import Problem, ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import CpuSpec, GpuSpec, NicSpec, NodeSpec, Provenance
from raysim.scenario import plain_machines
from raysim.scenario.described_gpu import gpu_of
from raysim.scenario.node_request import NodeRequest
from raysim.scenario.plain_machines import DEFAULT_NODE
from raysim.scenario.quantities import NicChoice
from raysim.scenario.schema_cluster import GpuSection, HardwareSection

_SAID = "the scenario"
DEFAULT_GPU_NODE = "hgx-h100-8"
"""Where a file asks for GPUs and does not say which."""


def choose_node(request: NodeRequest, hardware: HardwareSection | None) -> tuple[NodeSpec, str]:
    """The node of a group, and what is to be said of the choice.

    Raises
    ------
    ScenarioError
        Nothing says what it is, or the name is not in the catalog.
    """
    hardware = hardware or HardwareSection()
    said = ""
    threads = hardware.threads_per_core or request.threads_per_core
    if hardware.node is not None:
        base = catalog.node(hardware.node)
    elif request.instance_type is not None:
        base, said = _rented(request)
    elif request.accelerator is not None and request.gpus:
        base = _with_accelerator(request)
        said = f"{request.accelerator} is taken as {base.name} of the catalog"
    elif _sized(request):
        base = plain_machines.by_size(request.vcpus, request.memory_bytes, threads=threads)
        said = f"the file does not say what node it is; taken as {_described(base)}"
    else:
        hint = "such as {node: hgx-h100-8} or {node: cpu-32}"
        message = (
            f"the file does not say what node it is; add cluster.hardware.{request.name}, {hint}"
        )
        raise ScenarioError(Problem(message=message))
    gpus = hardware.gpus if hardware.gpus is not None else request.gpus
    changed = customised(base, gpu=hardware.gpu, gpus=gpus, nics=hardware.nics, threads=threads)
    return _pod_share(changed, request), said


def unsaid(requests: Iterable[NodeRequest]) -> dict[str, dict[str, object]]:
    """``cluster.hardware`` for groups that their file says nothing of: a guess, to be checked."""
    guessed: dict[str, dict[str, object]] = {}
    for request in requests:
        try:
            choose_node(request, None)
        except ScenarioError:
            if request.instance_type is not None:
                continue  # the file says what it is, and the catalog does not know it
            gpus = request.gpus or 0
            guessed[request.name] = {"node": DEFAULT_GPU_NODE if gpus else DEFAULT_NODE}
            if gpus and gpus != catalog.node(DEFAULT_GPU_NODE).gpu_count:
                guessed[request.name]["gpus"] = gpus
    return guessed


def _sized(request: NodeRequest) -> bool:
    """Whether a group without GPUs says how large its nodes are."""
    size = (request.vcpus or 0, request.memory_bytes or 0)
    return not request.gpus and any(size) and all(map(int.__le__, size, plain_machines.LARGEST))


def _described(node: NodeSpec) -> str:
    """A machine that the catalog has no row for."""
    gib, price = node.memory_bytes / 2**30, node.usd_per_hour or 0.0
    return f"a plain machine with {node.vcpus} vCPUs, {gib:g} GiB (assumed, at {price:.3g} usd/h)"


def _rented(request: NodeRequest) -> tuple[NodeSpec, str]:
    """The instance type; GCP attaches GPUs to general machines (``guestAccelerators``)."""
    name = str(request.instance_type)
    attached = request.accelerator is not None and request.gpus
    try:
        node = catalog.node(name)
        said = "" if name == node.name else f"{name} is taken as {node.name} of the catalog"
    except ScenarioError as error:
        sized = None if request.gpus and not attached else plain_machines.by_name(name)
        if sized is None and attached:
            return _with_accelerator(request), f"{name} is taken for its {request.accelerator}"
        if sized is None:
            hint = f"; or say what it is: cluster.hardware.{request.name}, such as {{node: cpu-32}}"
            problems = [replace(p, message=p.message + hint) for p in error.problems]
            raise ScenarioError(problems) from None
        node, said = sized, f"{name} is not in the catalog; taken as {_described(sized)}"
    if attached and not node.gpu_count:
        gpu = catalog.gpu_from_accelerator_type(str(request.accelerator))
        node = customised(node, gpu=GpuSection(like=gpu.name), gpus=request.gpus)
    return node, said


def _with_accelerator(request: NodeRequest) -> NodeSpec:
    """The smallest node with enough GPUs of a kind, the provider's own if it has one."""
    gpu = catalog.gpu_from_accelerator_type(str(request.accelerator))
    wanted = request.gpus or 1
    fitting = [n for n in _all_nodes() if n.gpu == gpu and n.gpu_count >= wanted]
    if not fitting:
        message = f"no node of the catalog has {wanted} x {gpu.name}; add cluster.hardware"
        raise ScenarioError(Problem(message=f"{message}.{request.name}"))
    return min(fitting, key=lambda n: (n.provider != request.provider, n.gpu_count, n.name))


def _all_nodes() -> Iterator[NodeSpec]:
    return (catalog.node(name) for name in catalog.names("node"))


def customised(
    node: NodeSpec,
    *,
    gpu: GpuSection | None,
    gpus: int | None,
    nics: NicChoice | None = None,
    threads: int | None = None,
) -> NodeSpec:
    """``node`` with another GPU, number of GPUs, network interfaces or threads per core.

    Raises
    ------
    ScenarioError
        A name is not in the catalog, a GPU's numbers say too little, or GPUs are asked of a node
        that has none.
    """
    changes: dict[str, object] = {}
    if gpu is not None:
        own = gpu_of(gpu, node.gpu)
        changes["gpu"] = own
        changes["gpu_fabric"] = node.gpu_fabric if _same_kind(node.gpu, own) else _fabric(own)
        changes["usd_per_hour"] = None
    if gpus is not None and gpus != node.gpu_count:
        if gpus > node.gpu_count and node.gpu_count and gpu is None:
            message = f"{gpus} GPUs asked, but {node.name} has {node.gpu_count}"
            raise ScenarioError(Problem(message=message))
        if gpus and node.gpu is None and gpu is None:
            raise ScenarioError(Problem(message=f"{node.name} has no GPUs; name one with `gpu`"))
        changes["gpu_count"] = gpus
        changes |= {} if gpus else {"gpu": None, "gpu_fabric": None}
    if nics is not None:
        changes |= {"nic": _nic(node, nics), "nic_count": nics.count}
    elif gpu is not None and gpus is None and not node.gpu_count:
        changes["gpu_count"] = 1
    if threads is not None and threads != node.cpu.threads_per_core:
        changes["vcpus"] = node.vcpus * threads // node.cpu.threads_per_core
        changes["cpu"] = _with_threads(node.cpu, threads)
    return replace(node, **changes) if changes else node  # type: ignore[arg-type]


def _with_threads(cpu: CpuSpec, threads: int) -> CpuSpec:
    """The same processors with so many threads per core."""
    said = {"threads_per_core": Provenance(basis="assumed", source=_SAID)}
    return replace(cpu, threads_per_core=threads, provenance={**cpu.provenance, **said})


def _same_kind(gpu: GpuSpec | None, other: GpuSpec) -> bool:
    """Whether another GPU plugs into the same switch (H100 for H200)."""
    return gpu is not None and gpu.scale_up == other.scale_up


def _fabric(gpu: GpuSpec) -> str:
    """How GPUs of a kind usually reach each other inside a node."""
    if gpu.scale_up == "nvlink":
        return "nvswitch" if (gpu.scale_up_generation or 0) >= 3 else "nvlink_mesh"
    return "nvlink_mesh" if gpu.scale_up else "pcie"


def _nic(node: NodeSpec, choice: NicChoice) -> NicSpec:
    """A catalog NIC of that rate: of the kind that is said, else the node's own if possible.

    Else InfiniBand from 100 Gb/s on. A rate that no catalog NIC has is the kind's nearest, changed.
    """
    if choice.name is not None:
        return catalog.nic(choice.name)
    rate = choice.bytes_per_s or 0.0
    own = choice.kind in (None, node.nic.kind)
    if own and math.isclose(rate, node.nic.bytes_per_s):
        return node.nic
    fitting = [nic for nic in _all_nics() if math.isclose(nic.bytes_per_s, rate)]
    fast = rate >= 100e9 / 8
    usual = (node.nic.kind, "infiniband" if fast else "ethernet", "ethernet")
    for kind in usual if choice.kind is None else (choice.kind,):
        for nic in fitting:
            if nic.kind == kind:
                return nic
    near = node.nic
    if not own:
        of_kind = [nic for nic in _all_nics() if nic.kind == choice.kind]
        near = min(of_kind, key=lambda nic: abs(math.log(nic.bytes_per_s / rate)))
    said = Provenance(basis="assumed", source=_SAID)
    return replace(
        near,
        name=f"{near.kind}-{rate * 8 / 1e9:g}",
        bytes_per_s=rate,
        provenance={**near.provenance, "bytes_per_s": said},
    )


def _all_nics() -> Iterator[NicSpec]:
    return (catalog.nic(name) for name in catalog.names("nic"))


def _pod_share(node: NodeSpec, request: NodeRequest) -> NodeSpec:
    """A pod may use less of the host than there is."""
    vcpus, memory = request.vcpus, request.memory_bytes
    smaller_cpu = vcpus is not None and 0 < vcpus < node.vcpus
    smaller_memory = memory is not None and 0 < memory < node.memory_bytes
    if smaller_cpu and vcpus is not None:
        share = vcpus / node.vcpus
        cores = max(1, math.ceil(node.cpu.cores * share))
        cpu = replace(node.cpu, cores=cores, flops_per_s=node.cpu.flops_per_s * share)
        node = replace(node, vcpus=vcpus, cpu=cpu)
    if smaller_memory and memory is not None:
        node = replace(node, memory_bytes=memory)
    return node
