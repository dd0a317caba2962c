"""Machines without GPUs that the catalog has no row for: by their size, or by their name.

Ray asks the cloud's API for vCPUs and memory of an instance type; providers' names say the same:
family, generation, size. A pod says what it may use. Processor, network and disk are then those of
the catalog's plain machines (assumed), and so is the price: AWS's per vCPU and per GiB.

Not modelled: burst credits (t3, e2-small), what newer processors are faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from raysim.hardware import catalog
from raysim.hardware.specs import NodeSpec, Provenance

_GIB = 2**30
_PRICED = Provenance(basis="assumed", source="AWS's prices of c6i and m6i per vCPU and GiB")
_ASSUMED = Provenance(basis="assumed", source="size by name or by the cluster file")
LARGEST = (4096, 2**46)
"""vCPUs and bytes beyond which a size is no machine's."""
DEFAULT_NODE = "cpu-16"
"""Where nothing is known at all: a plain machine with 16 vCPUs, 64 GiB."""

USD_PER_VCPU_HOUR = 0.037
USD_PER_GIB_HOUR = 0.00275
"""Through AWS's c6i.2xlarge (8 vCPUs, 16 GiB, $0.34) and m6i.2xlarge (32 GiB, $0.384), us-east-1 on
demand; r6i.2xlarge ($0.504) costs 7 % more than they say."""

_AWS = re.compile(r"(?:ml\.)?([a-z])(\d)([a-z]*)(?:-flex)?\.(medium|large|(\d{0,3})xlarge)")
_AWS_GIB = {"c": 2.0, "m": 4.0, "r": 8.0, "t": 4.0}
"""Per vCPU, by the family's letter: https://aws.amazon.com/ec2/instance-types"""
_AWS_OTHER = {
    "c4": 1.875,
    "c3": 1.875,
    "r4": 7.625,
    "r3": 7.625,
    "m3": 3.75,
    "c5n": 2.625,
    "i3": 7.625,
}
_AWS_SMALL = {
    "t2.nano": (1, 0.5), "t2.micro": (1, 1.0), "t2.small": (1, 2.0), "t2.medium": (2, 4.0),
    "t3.nano": (2, 0.5), "t3.micro": (2, 1.0), "t3.small": (2, 2.0), "t3.medium": (2, 4.0),
    "t3a.nano": (2, 0.5), "t3a.micro": (2, 1.0), "t3a.small": (2, 2.0), "t3a.medium": (2, 4.0),
    "t4g.nano": (2, 0.5), "t4g.micro": (2, 1.0), "t4g.small": (2, 2.0), "t4g.medium": (2, 4.0),
    "t1.micro": (1, 0.613),
}  # fmt: skip
_GCP = re.compile(r"([a-z]\d[a-z]?)-(standard|highmem|highcpu)-(\d{1,4})")
_GCP_CUSTOM = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(\d{1,4})-(\d{1,8})")
_GCP_GIB = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
"""Per vCPU: https://cloud.google.com/compute/docs/machine-resource"""
_GCP_OTHER = {
    "n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9, "c3-highcpu": 2.0,
    "c4-standard": 3.75, "c4-highmem": 7.75, "c4-highcpu": 2.0,
}  # fmt: skip
_GCP_GPUS = ("a", "g")
_AZURE = re.compile(r"standard_([def])(\d{1,4})[a-z]*_v\d")
_AZURE_GIB = {"d": 4.0, "e": 8.0, "f": 2.0}
"""Per vCPU: https://learn.microsoft.com/azure/virtual-machines/sizes"""
_ALIBABA = re.compile(r"ecs\.([cgr]|n)(\d)[a-z]*\.(large|(\d{0,3})xlarge)")
_ALIBABA_GIB = {"c": 2.0, "g": 4.0, "r": 8.0, "n": 2.0}
"""Per vCPU: https://www.alibabacloud.com/help/en/ecs/user-guide/overview-of-instance-families"""

_ONE_THREAD = re.compile(
    r"(?:ml\.)?[a-z]\d[a-z]*g[a-z]*\..*|(?:ml\.)?[cmr][78]a\..*|(t2[ad]|[cn]4a)-.*"
    r"|standard_[a-z]\d{1,4}[a-z]*p[a-z]*_v\d|ecs\.[a-z]\d+y\..*"
)
"""Whose vCPUs are cores: Graviton, AWS's 7th and 8th generation with EPYC, Tau and Axion, Azure's
and Alibaba's with Arm. Same pages; GCP: https://cloud.google.com/compute/docs/general-purpose-machines
"""


def by_name(instance_type: str) -> NodeSpec | None:
    """The machine that a provider's name describes; None where the name does not say enough."""
    size = _size(instance_type.lower())
    if size is None or not size[0]:
        return None
    vcpus, gib = size
    threads = 1 if _ONE_THREAD.fullmatch(instance_type.lower()) else None
    return replace(by_size(vcpus, round(gib * _GIB), threads=threads), name=instance_type)


def by_size(vcpus: int | None, memory_bytes: int | None, *, threads: int | None = None) -> NodeSpec:
    """The smallest plain machine of the catalog with so much, cut or grown to it.

    ``threads``: of a core; None: as that machine has.
    """
    plain = list(_plain())
    need_vcpus, need_bytes = vcpus or 1, memory_bytes or 0
    base = next(
        (n for n in plain if n.vcpus >= need_vcpus and n.memory_bytes >= need_bytes), plain[-1]
    )
    vcpus = vcpus or base.vcpus
    share = vcpus / base.vcpus
    threads = threads or base.cpu.threads_per_core
    of_cores = share * base.cpu.threads_per_core / threads
    host = replace(
        base.cpu,
        threads_per_core=threads,
        cores=max(1, math.ceil(base.cpu.cores * of_cores)),
        memory_bytes_per_s=base.cpu.memory_bytes_per_s * min(1.0, share),
        flops_per_s=base.cpu.flops_per_s * of_cores,
    )
    has_bytes = memory_bytes or round(base.memory_bytes * max(1.0, share))
    return replace(
        base,
        name=f"cpu-{vcpus}",
        vcpus=vcpus,
        memory_bytes=has_bytes,
        cpu=host,
        usd_per_hour=vcpus * USD_PER_VCPU_HOUR + has_bytes / _GIB * USD_PER_GIB_HOUR,
        price_note="",
        provenance={
            **base.provenance,
            "vcpus": _ASSUMED,
            "memory_bytes": _ASSUMED,
            "usd_per_hour": _PRICED,
        },
    )


def _plain() -> Iterator[NodeSpec]:
    """The catalog's machines of no provider, small to large."""
    for name in catalog.names("node"):
        if name.startswith("cpu-") and not (node := catalog.node(name)).gpu_count:
            yield node


def _size(name: str) -> tuple[int, float] | None:
    """vCPUs and GiB."""
    if name in _AWS_SMALL:
        return _AWS_SMALL[name]
    if match := _AWS.fullmatch(name):
        family = f"{match[1]}{match[2]}{match[3]}"
        per = _AWS_OTHER.get(family, _AWS_GIB.get(match[1]))
        return _of_size(match[4], match[5], per)
    if match := _ALIBABA.fullmatch(name):
        return _of_size(match[3], match[4], _ALIBABA_GIB[match[1]])
    if match := _GCP_CUSTOM.fullmatch(name):
        return int(match[1]), int(match[2]) / 1024  # MiB
    if (match := _GCP.fullmatch(name)) and not match[1].startswith(_GCP_GPUS):
        per = _GCP_OTHER.get(f"{match[1]}-{match[2]}", _GCP_GIB[match[2]])
        return int(match[3]), int(match[3]) * per
    if match := _AZURE.fullmatch(name):
        return int(match[2]), int(match[2]) * _AZURE_GIB[match[1]]
    return None


def _of_size(size: str, times: str | None, gib: float | None) -> tuple[int, float] | None:
    """``medium`` has one vCPU, ``large`` two, ``xlarge`` four, ``8xlarge`` 32."""
    if gib is None:
        return None
    vcpus = {"medium": 1, "large": 2}.get(size, 4 * int(times or 1))
    return vcpus, vcpus * gib
