"""A GPU described by its numbers (``cluster.gpu``); what is left out is a catalog GPU's.

What a user says and what is taken for the rest are both ``assumed``: nobody here has read the
datasheet, and no run on it was measured. Kernels take the shape of the catalog GPU's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raysim.errors import Problem, ScenarioError
from raysim.hardware import catalog
from raysim.hardware.specs import CpuRankSpec, GpuSpec, Provenance
from raysim.scenario.schema_cluster import GpuSection

_AMD = re.compile(r"\b(?:amd|instinct|radeon|mi\d{2,3})", re.IGNORECASE)
_SAID = Provenance(basis="assumed", source="the scenario")


def gpu_of(section: GpuSection, beside: GpuSpec | None) -> GpuSpec:
    """The GPU of a section: the catalog's where only ``like`` is said, else a changed one.

    Parameters
    ----------
    beside
        The node's own GPU: where no links are said, it has links if that one has.

    Raises
    ------
    ScenarioError
        A name is not in the catalog, or already is; or the numbers say too little.
    """
    said = section.model_fields_set
    if said == {"like"} and section.like is not None:
        return catalog.gpu(section.like)
    _can_be(section)
    linked = bool(section.links if section.links is not None else beside and beside.scale_up)
    like = catalog.gpu(section.like) if section.like else _nearest(section, linked)
    changes: dict[str, Any] = {
        "flops_per_s": _peaks(section, like),
        "memory_bytes": section.memory,
        "memory_bytes_per_s": section.memory_bandwidth,
        "sm_count": section.sm_count,
        "tdp_w": section.watts,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    changes |= _links(section, like, linked) | _slot(section.pcie)
    taken = Provenance(basis="assumed", source=f"{catalog.LEFT_OUT}{like.name}")
    origin = dict.fromkeys(like.provenance, taken)
    origin |= {key: _SAID for key in changes if key != "flops_per_s"}
    origin |= {f"flops_per_s.{dtype}": _SAID for dtype in section.flops}
    name = section.name or f"{like.name} (changed)"
    return replace(like, name=name, provenance=origin, **changes)


def said_of(section: GpuSection | None, gpu: GpuSpec | None) -> str:
    """What was taken for what the section leaves out; empty for a GPU of the catalog."""
    if section is None or gpu is None or gpu.name in catalog.names("gpu"):
        return ""
    left = catalog.left_to(gpu)
    linked = (
        f"links {gpu.scale_up_bytes_per_s / 1e9:,.0f} GB/s one way" if gpu.scale_up else "no links"
    )
    peaks = ", ".join(f"{dtype} {peak / 1e12:,.0f}" for dtype, peak in gpu.flops_per_s.items())
    return (
        f"{gpu.name} is a guess: {', '.join(left) or 'nothing'} gives what is left out (like: says "
        f"another) and the shape of its kernels. Taken are TFLOP/s of {peaks}; {linked}; PCIe "
        f"{gpu.pcie_generation}; {gpu.sm_count} SMs; {gpu.tdp_w:g} W"
    )


def _can_be(section: GpuSection) -> None:
    """Refuse what says too little, or takes a name that means another GPU."""
    if section.like is None and not section.flops:
        message = (
            "say its peaks, flops: {bf16: 989 TFLOP/s}, or a GPU of the catalog that it is like"
        )
        raise ScenarioError(Problem(message=f"gpu: {message}"))
    if section.name is None:
        return
    try:
        known = catalog.gpu(section.name)
    except ScenarioError:
        return
    message = f"gpu: the catalog's {known.name} is called {section.name!r}; give yours another name"
    raise ScenarioError(Problem(message=message))


def _nearest(section: GpuSection, linked: bool) -> GpuSpec:
    """Of the same vendor, with the same data types and links if any has; then by its numbers."""
    vendor = "amd" if _AMD.search(section.name or "") else "nvidia"

    def distance(gpu: GpuSpec) -> tuple[bool, bool, int, float]:
        pairs = [
            (peak, gpu.flops_per_s[d]) for d, peak in section.flops.items() if d in gpu.flops_per_s
        ]
        pairs += [(section.memory or 0, gpu.memory_bytes)]
        pairs += [(section.memory_bandwidth or 0, gpu.memory_bytes_per_s)]
        lacking = len(section.flops.keys() - gpu.flops_per_s.keys())
        far = math.fsum(math.log(mine / its) ** 2 for mine, its in pairs if mine)
        return gpu.vendor != vendor, linked and not gpu.scale_up, lacking, far

    known = (catalog.gpu(name) for name in catalog.names("gpu"))
    return min((g for g in known if not isinstance(g, CpuRankSpec)), key=distance)


def _peaks(section: GpuSection, like: GpuSpec) -> Mapping[str, float] | None:
    """Those said; the others by the ratio (geometric mean) of those that both have."""
    if not section.flops:
        return None
    both = [d for d in section.flops if d in like.flops_per_s]
    logs = [math.log(section.flops[d] / like.flops_per_s[d]) for d in both]
    ratio = math.exp(math.fsum(logs) / len(logs)) if logs else 1.0
    scaled = {dtype: peak * ratio for dtype, peak in like.flops_per_s.items()}
    return scaled | dict(section.flops)


def _links(section: GpuSection, like: GpuSpec, linked: bool) -> dict[str, Any]:
    """NVLink or xGMI."""
    if not linked:
        none = {"scale_up_links": 0, "scale_up_bytes_per_s": 0.0}
        return {"scale_up": None, "scale_up_generation": None, **none}
    if section.links and not like.scale_up:
        message = f"gpu: {like.name} has no links between GPUs; name one in `like` that has"
        raise ScenarioError(Problem(message=message))
    return {"scale_up_bytes_per_s": section.links} if section.links else {}


def _slot(generation: int | None) -> dict[str, Any]:
    """What pinned copies reach over a slot of that generation, as the catalog's GPUs do."""
    if generation is None:
        return {}
    known = (catalog.gpu(name) for name in catalog.names("gpu"))
    rate = next((g.pcie_bytes_per_s for g in known if g.pcie_generation == generation), None)
    if rate is None:
        raise ScenarioError(Problem(message=f"gpu: no GPU of the catalog has PCIe {generation}"))
    return {"pcie_generation": generation, "pcie_bytes_per_s": rate}
