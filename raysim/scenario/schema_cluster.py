"""The ``cluster`` section: a user's Ray file plus what it cannot say, or a few words in place."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysim.scenario.quantities import (
    NICS_SAID,
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Nics,
    UsdPerHour,
)
from raysim.scenario.section import FileOrDocuments, Section, shorthand

Threads = Annotated[
    Literal[1, 2] | None,
    Field(
        description="Threads per core in place of its own; 1: hyperthreading is off, and a node "
        "has a vCPU for each of its cores."
    ),
]


class GpuSection(Section):
    """A GPU that the catalog does not hold, or one of it that differs; or a name of the catalog."""

    name: Annotated[str, Field(min_length=1, max_length=60)] | None = Field(
        None, description="What to call it; no name of the catalog."
    )
    like: str | None = Field(
        None,
        description="Catalog GPU that gives what is left out, and the shape of its kernels; by "
        "default the one whose numbers are nearest, of the same vendor by its name.",
    )
    flops: dict[Literal["fp32", "tf32", "fp16", "bf16", "fp8", "fp4"], FlopsPerSecond] = Field(
        default_factory=dict,
        description="Dense peaks by data type, {bf16: 989 TFLOP/s}; those left out keep the "
        "ratio they have on the other one.",
    )
    memory: Annotated[Bytes, Field(ge=2**30)] | None = Field(
        None, description="Its memory, as torch's total_memory reports it."
    )
    memory_bandwidth: Annotated[BytesPerSecond, Field(ge=1e9)] | None = Field(
        None, description="Of that memory."
    )
    links: BytesPerSecond | None = Field(
        None,
        description="Sum of its NVLink or xGMI links in one direction (datasheets add both); 0: "
        "none. By default it has links if the node's own GPUs have.",
    )
    pcie: Literal[3, 4, 5, 6] | None = Field(None, description="Generation of its x16 slot.")
    sm_count: int | None = Field(None, ge=1, le=10_000, description="SMs, or compute units.")
    watts: float | None = Field(None, ge=1, le=100_000, description="Its TDP.")


Gpu = Annotated[GpuSection, shorthand("like")]


class HardwareSection(Section):
    """Hardware of one node group."""

    node: str | None = Field(
        None, description="Catalog name of the node, such as hgx-h100-8 or p5.48xlarge."
    )
    gpu: Gpu | None = Field(
        None,
        description="GPU in place of the node's own: a catalog name, or its numbers, such as "
        "{name: MI355X, flops: {bf16: 2.5 PFLOP/s}, memory: 288GB, memory_bandwidth: 8TB/s}; what "
        "they leave out is the nearest catalog GPU's.",
    )
    gpus: int | None = Field(None, ge=0, le=128, description="GPUs per node in place of its own.")
    nics: Nics | None = Field(
        None, description=f"Network interfaces per node in place of its own: {NICS_SAID}."
    )
    threads_per_core: Threads = None
    replicas: int | None = Field(
        None, ge=0, le=1_000_000, description="Nodes in the group, in place of what the file says."
    )
    min_replicas: int | None = Field(
        None, ge=0, le=1_000_000, description="Fewest nodes that the autoscaler leaves."
    )
    max_replicas: int | None = Field(
        None, ge=0, le=1_000_000, description="Most nodes that the autoscaler makes."
    )

    @model_validator(mode="after")
    def _one_size(self) -> HardwareSection:
        least, most = self.min_replicas, self.max_replicas
        if self.replicas is not None and (least is not None or most is not None):
            raise ValueError("give replicas, or min_replicas and max_replicas")
        if least is not None and most is not None and least > most:
            raise ValueError("min_replicas is above max_replicas")
        return self


class FabricSection(Section):
    """The network between nodes."""

    kind: Literal["star", "rail_fat_tree", "fat_tree"] = Field(
        "star",
        description="star: one non-blocking switch; rail_fat_tree: NIC i of every node on leaf i.",
    )
    oversubscription: float = Field(
        1.0, ge=1, le=1000, description="Leaf down-link over up-link capacity."
    )
    nodes_per_leaf: int = Field(32, ge=1, le=100_000, description="Nodes that share a leaf switch.")


class ClusterSection(Section):
    """Which nodes there are and how they are connected."""

    source: FileOrDocuments | None = Field(
        None,
        alias="from",
        description="`ray up` YAML or KubeRay RayCluster, RayJob or RayService, unmodified.",
    )
    hardware: dict[str, HardwareSection] = Field(
        default_factory=dict,
        description="What the file cannot say, by node group (worker group, node type, or head).",
    )
    nodes: int | None = Field(
        None, ge=1, le=1_000_000, description="Number of equal nodes, when there is no file."
    )
    node: str | None = Field(None, description="Catalog name of those nodes.")
    gpu: Gpu | None = Field(
        None,
        description="GPU in place of the node's own: a catalog name, or its numbers, such as "
        "{name: MI355X, flops: {bf16: 2.5 PFLOP/s}, memory: 288GB, memory_bandwidth: 8TB/s}; what "
        "they leave out is the nearest catalog GPU's.",
    )
    gpus: int | None = Field(None, ge=0, le=128, description="GPUs per node in place of its own.")
    nics: Nics | None = Field(None, description=f"Network interfaces per node: {NICS_SAID}.")
    threads_per_core: Threads = None
    head: str | None = Field(None, description="Catalog name of a head node without GPUs.")
    resources: dict[str, Annotated[float, Field(ge=0)]] = Field(
        default_factory=dict,
        description="Ray resources per node beside, or in place of, its CPUs and GPUs: {slot: 2}.",
    )
    fabric: Annotated[FabricSection, shorthand("kind")] | None = Field(
        None, description="Network between nodes: a kind, or its settings."
    )
    prices: dict[str, UsdPerHour] = Field(
        default_factory=dict, description="Price per node of a group, such as 23.92 usd/h."
    )

    pue: Annotated[float, Field(ge=1, le=5)] | None = Field(
        None, description="Power of the building over its machines'; by default the provider's."
    )
    gco2e_per_kwh: Annotated[float, Field(ge=0, le=5000)] | None = Field(
        None, description="Carbon intensity of the grid in grams; without it no carbon is told."
    )

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ClusterSection:
        inline = ("nodes", "node", "gpu", "gpus", "nics", "threads_per_core", "head")
        given = [name for name in inline if getattr(self, name) is not None]
        given += ["resources"] if self.resources else []
        if self.source is not None and given:
            raise ValueError(
                f"give either `from` or {', '.join(given)}, not both; hardware of a group in a "
                "file goes under `hardware`, its size is --set cluster.GROUP.replicas=4"
            )
        if self.source is None and self.node is None:
            raise ValueError("needs `from` (a cluster file) or `nodes` and `node`")
        if self.source is None and self.hardware:
            raise ValueError("`hardware` describes the groups of a cluster file; `from` is missing")
        return self
