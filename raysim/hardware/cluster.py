"""What a cluster consists of: groups of equal nodes and the fabric between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from raysim.hardware.specs import GpuSpec, NodeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """The network between nodes."""

    kind: Literal["star", "rail_fat_tree", "fat_tree"] = "star"
    """``star``: one Ethernet switch; ``rail_fat_tree``: NIC i of every node of a pod on leaf i."""
    oversubscription: float = 1.0
    """Leaf down-link over up-link capacity; of a star, its ports over its backplane."""
    nodes_per_leaf: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Equal nodes, as one ``available_node_types`` or ``workerGroupSpecs`` entry describes them."""

    name: str
    node: NodeSpec
    count: int
    head: bool = False
    resources: dict[str, float] = field(default_factory=dict, hash=False)
    """Ray's logical resources per node."""
    labels: dict[str, str] = field(default_factory=dict, hash=False)
    """Ray's node labels."""
    min_count: int = 0
    max_count: int | None = None
    usd_per_hour: float | None = None
    """Overrides the catalog's price per node."""

    @property
    def node_usd_per_hour(self) -> float | None:
        """Price of one node; None where it is not known."""
        return self.node.usd_per_hour if self.usd_per_hour is None else self.usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """All node groups and the fabric."""

    groups: tuple[NodeGroup, ...]
    fabric: FabricSpec = field(default_factory=FabricSpec)
    host_of: tuple[int, ...] | None = None
    """The machine that each of ``nodes`` runs on, when they share machines: by number, each one's
    cores and disks those of its first node. Threads then contend for cores (``hardware/host.py``).
    None: every node is a machine of its own, with cores for every thread of Ray's."""

    @staticmethod
    def of(node: str, nodes: int = 1, *, fabric: FabricSpec | None = None) -> ClusterSpec:
        """Equal nodes of the catalog: ``ClusterSpec.of("hgx-h100-8", 4)``.

        Raises
        ------
        ScenarioError
            The catalog has no such node.
        """
        from raysim.hardware import catalog

        found = catalog.node(node)
        group = NodeGroup(
            name="worker", node=found, count=nodes, min_count=nodes, max_count=nodes,
            resources={"CPU": float(found.vcpus), "GPU": float(found.gpu_count)},
        )  # fmt: skip
        return ClusterSpec(groups=(group,), fabric=fabric or FabricSpec())

    @property
    def gpu_nodes(self) -> tuple[NodeSpec, ...]:
        """Every node that has GPUs, one entry per node, head first if it has any."""
        ordered = sorted(self.groups, key=lambda g: not g.head)
        return tuple(g.node for g in ordered for _ in range(g.count) if g.node.gpu_count)

    @property
    def nodes(self) -> tuple[NodeSpec, ...]:
        """Every node: ``gpu_nodes`` first, then those without GPUs, head first among each."""
        ordered = sorted(self.groups, key=lambda g: not g.head)
        bare = (g.node for g in ordered for _ in range(g.count) if not g.node.gpu_count)
        return self.gpu_nodes + tuple(bare)

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return sum(n.gpu_count for n in self.gpu_nodes)

    @property
    def gpu(self) -> GpuSpec | None:
        """The GPU type of the first node that has one."""
        return next((n.gpu for n in self.gpu_nodes), None)

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all nodes; None when a node has none."""
        prices = [(g.node_usd_per_hour, g.count) for g in self.groups]
        if any(price is None for price, count in prices if count):
            return None
        return sum((price or 0.0) * count for price, count in prices)
