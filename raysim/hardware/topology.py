"""The links of a cluster, the route between any two ends, and what a collective puts on each link.

Real counterpart: NCCL's topology search (``src/graph``) and the fabric below it. Nodes are numbered
as in ``ClusterSpec.nodes`` (those with GPUs first), a GPU is ``(node, local)``, an end of a route
is ``("gpu", node, i)``, ``("host", node)`` or ``("storage",)``.

Fabrics: ``star`` (one Ethernet switch; with oversubscription its backplane is a link),
``fat_tree`` (``nodes_per_leaf`` nodes with all their NICs on one leaf) and ``rail_fat_tree`` (NIC i
of those nodes on leaf i, and NCCL's PXN: traffic changes rail over NVLink before it leaves a node).
An island is what NCCL calls a node: the GPUs of one host, or of an NVLink domain (NVL72) of many.

Traffic between GPUs takes the NICs of the fabric. What starts or ends in host memory or in object
storage takes ``host_nic`` where nodes have one: then those, and nodes without GPUs, form a network
of their own, a non-blocking switch ("front"), joined to the fabric without a limit.

Not modelled: collisions of equal-cost paths (leaf to spine is one fat link), a third switch layer,
adaptive routing, limits between the fabric, the front network and storage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from raysim.hardware.cluster import ClusterSpec
from raysim.hardware.node_links import Link, NodeLinks, Vertex

if TYPE_CHECKING:
    import networkx as nx

    from raysim.hardware.link_numbers import LinkNumbers

__all__ = ["Link", "Member", "Share", "Spread", "Topology", "Vertex"]

Member = tuple[int, int]
"""One GPU: (node index, local index); also one NIC."""
Share = tuple[Link, bool, float, float]
"""A link; whether it carries what goes between islands; how often that, over how many parts."""

# One more switch on the way. InfiniBand: Quantum-2 (QM9700), under 150 ns port to port; Ethernet:
# Spectrum-2 product brief, 300 ns.
_SWITCH_LATENCY_S = {"infiniband": 0.15e-6}
_ETHERNET_SWITCH_LATENCY_S = 0.3e-6


class Spread(NamedTuple):
    """How GPUs that talk to each other are spread over a cluster."""

    ranks: int
    islands: int
    per_island: int
    """In the fullest."""
    near: int
    """NICs that serve the island with the fewest."""
    latency_s: float
    """One way between islands."""


class Topology:
    """All links of a cluster; make with ``Topology.build``."""

    def __init__(self, cluster: ClusterSpec) -> None:
        self.cluster = cluster
        self.fabric = cluster.fabric
        self.specs = cluster.nodes
        self._nodes: list[NodeLinks | None] = [None] * len(self.specs)
        self._nics_of_gpu: dict[int, list[tuple[int, ...]]] = {}
        self._leaves: dict[Member, tuple[Link, Link]] = {}
        self._paths: dict[tuple[Vertex, Vertex], tuple[Link, ...]] = {}
        self._ways_out: dict[Vertex, tuple[tuple[Link, ...], Member | None]] = {}
        self._ways_in: dict[Vertex, tuple[tuple[Link, ...], Member | None]] = {}
        self.island = self._number_islands()
        """Of each node, the number of its NVLink island."""
        front = any(s.host_nic is not None for s in self.specs)
        self._join = (Link("front/in", math.inf), Link("front/out", math.inf)) if front else ()
        """From the fabric to the hosts' own network and back; not a limit."""
        self._store = (Link("storage/in", math.inf), Link("storage/out", math.inf))
        self.narrowed: dict[Link, int] = {}
        """Links that carry less than they should, and whose they are."""
        self.backplane: Link | None = None
        if self.fabric.kind == "star" and self.fabric.oversubscription > 1:
            ports = sum(s.nic_count * s.nic.bytes_per_s * s.nic.efficiency for s in self.specs)
            self.backplane = Link("switch/backplane", ports / self.fabric.oversubscription)

    @classmethod
    def build(cls, cluster: ClusterSpec) -> Topology:
        """The topology of a cluster; links come into being as they are asked for."""
        return cls(cluster)

    def _number_islands(self) -> list[int]:
        """Per node its NVLink island; consecutive equal hosts fill one domain."""
        islands: list[int] = []
        left = 0
        for index, spec in enumerate(self.specs):
            spans = spec.nvlink_domain > spec.gpu_count > 0 and spec.gpu_fabric == "nvswitch"
            same = index > 0 and self.specs[index - 1] == spec
            if spans and same and left >= spec.gpu_count:
                islands.append(islands[-1])
            else:
                islands.append(islands[-1] + 1 if islands else 0)
                left = spec.nvlink_domain
            left -= spec.gpu_count
        return islands

    # ---- links -----------------------------------------------------------------------------------

    def node(self, index: int) -> NodeLinks:
        """The links of one node."""
        links = self._nodes[index]
        if links is None:
            island: Vertex = ("nvswitch", self.island[index])
            links = self._nodes[index] = NodeLinks(index, self.specs[index], island)
        return links

    def narrow(self, node: int, nic: int, share: float) -> None:
        """Leave a NIC a share of its rate, both ways: a cable or port that runs degraded."""
        links = self.node(node)
        for link in (links.nic_out[nic], links.nic_in[nic]):
            link.bytes_per_s *= share
            self.narrowed[link] = node

    @cached_property
    def numbers(self) -> LinkNumbers:
        """Its links by number, as narrow as they are when this is first asked for."""
        from raysim.hardware.link_numbers import LinkNumbers

        return LinkNumbers(self)

    def _in_fabric(self, node: int) -> bool:
        """Whether a node's NICs are in the fabric; a bare node's are not beside a host network."""
        return not self._join or self.specs[node].gpu_count > 0

    def _leaf_of(self, node: int, nic: int) -> Member:
        """(pod, rail) of the leaf switch that a NIC is plugged into; rail 0 without rails."""
        if self.fabric.kind == "star":
            return (0, 0)
        rail = nic if self.fabric.kind == "rail_fat_tree" else 0
        return (node // self.fabric.nodes_per_leaf, rail)

    def _leaf(self, leaf: Member) -> tuple[Link, Link]:
        """Up and down link of one leaf: its ports' sum over the oversubscription."""
        links = self._leaves.get(leaf)
        if links is None:
            pod, rail = leaf
            size = self.fabric.nodes_per_leaf
            indices = range(pod * size, min((pod + 1) * size, len(self.specs)))
            specs = [self.specs[index] for index in indices if self._in_fabric(index)]
            ports = 0.0
            for s in specs:
                on_leaf = s.nic_count if self.fabric.kind == "fat_tree" else s.nic_count > rail
                ports += on_leaf * s.nic.bytes_per_s * s.nic.efficiency
            latency_s = _SWITCH_LATENCY_S.get(specs[0].nic.kind, _ETHERNET_SWITCH_LATENCY_S)
            rate = ports / self.fabric.oversubscription
            name = f"leaf-{pod}-{rail}"
            links = (Link(f"{name}/up", rate, latency_s), Link(f"{name}/down", rate, latency_s))
            self._leaves[leaf] = links
        return links

    def leaf_links(self, node: int, nic: int) -> tuple[Link, ...]:
        """Up and down link of the leaf switch that a NIC is plugged into; none in a star."""
        if self.fabric.kind == "star" or not self._in_fabric(node):
            return ()
        return self._leaf(self._leaf_of(node, nic))

    def leaves(self) -> dict[Member, tuple[Link, Link]]:
        """Up and down link of every leaf switch, by pod and rail."""
        if self.fabric.kind != "star":
            size, rails = self.fabric.nodes_per_leaf, self.fabric.kind == "rail_fat_tree"
            pods: dict[int, int] = {}
            for node, spec in enumerate(self.specs):
                if self._in_fabric(node):
                    pod = node // size
                    pods[pod] = max(pods.get(pod, 0), spec.nic_count if rails else 1)
            for pod, count in pods.items():
                for rail in range(count):
                    self._leaf((pod, rail))
        return self._leaves

    def _across(self, a: Member, b: Member) -> tuple[Link, ...]:
        """Links between the port of NIC ``a`` = (node, nic) and that of NIC ``b``."""
        if self.fabric.kind == "star":
            return (self.backplane,) if self.backplane else ()
        here, there = self._leaf_of(*a), self._leaf_of(*b)
        return () if here == there else (self._leaf(here)[0], self._leaf(there)[1])

    def _edges(self) -> Iterator[tuple[Vertex, Vertex, Link]]:
        """Every link with its ends, node by node, then the fabric, then what is beyond it."""
        star, plane = self.fabric.kind == "star", self.backplane
        into: Vertex = ("switch", "in") if plane else ("switch",)
        out: Vertex = ("switch", "out") if plane else ("switch",)
        front: Vertex = ("front",)
        leaves: dict[Member, None] = {}
        for index, spec in enumerate(self.specs):
            at = [self._leaf_of(index, k) for k in range(spec.nic_count)]
            port: list[Vertex] = [front] * spec.nic_count
            if self._in_fabric(index):
                port = [("switch",) if star else ("leaf", *leaf) for leaf in at]
                leaves.update(dict.fromkeys(at))
            for u, v, link in self.node(index).edges(port, front):
                yield (out if u == ("switch",) else u), (into if v == ("switch",) else v), link
        if plane:
            yield into, out, plane
        for leaf in () if star else leaves:
            up, down = self._leaf(leaf)
            yield ("leaf", *leaf), ("spine",), up
            yield ("spine",), ("leaf", *leaf), down
        above, below = (out, into) if star else (("spine",), ("spine",))
        if self._join:
            yield above, front, self._join[0]
            yield front, below, self._join[1]
            above = below = front
        yield above, ("storage",), self._store[0]
        yield ("storage",), below, self._store[1]

    @property
    def links(self) -> tuple[Link, ...]:
        """Every link of the cluster, in node order."""
        return tuple(dict.fromkeys(link for _, _, link in self._edges()))

    @property
    def graph(self) -> nx.MultiDiGraph[Vertex]:
        """The cluster as a directed graph, an edge per link with its ``link`` and numbers."""
        import networkx as nx

        graph: nx.MultiDiGraph[Vertex] = nx.MultiDiGraph()
        for u, v, link in self._edges():
            graph.add_edge(u, v, link=link, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)
        return graph

    def node_links(self, index: int) -> tuple[Link, ...]:
        """Every link that dies with one node."""
        return links_of(self.node(index))

    # ---- routes ----------------------------------------------------------------------------------

    def path(self, src: Vertex, dst: Vertex) -> tuple[Link, ...]:
        """Links from ``src`` to ``dst`` in order; empty when they are one GPU. Cached.

        Raises
        ------
        ValueError
            An end is of no known kind.
        """
        key = (src, dst)
        path = self._paths.get(key)
        if path is None:
            path = self._paths[key] = self.route(src, dst)
        return path

    def route(self, src: Vertex, dst: Vertex) -> tuple[Link, ...]:
        """As ``path``, for whoever keeps it himself."""
        for end in (src, dst):
            if end[0] not in {"gpu", "host", "storage"}:
                raise ValueError(f"no such end of a route: {end!r}")
        if src[0] == dst[0] == "gpu":
            return self._gpu_route((int(src[1]), int(src[2])), (int(dst[1]), int(dst[2])))
        if src[0] == dst[0] == "storage":
            raise ValueError("a route needs an end other than storage")
        if src[1:2] == dst[1:2]:
            return self._local_route(self.node(int(src[1])), src, dst)
        leave, a = self._ways_out.get(src) or self._ways_out.setdefault(src, self._leave(src))
        enter, b = self._ways_in.get(dst) or self._ways_in.setdefault(dst, self._enter(dst))
        return (*leave, *self._between(a, b), *enter)

    @staticmethod
    def _local_route(node: NodeLinks, src: Vertex, dst: Vertex) -> tuple[Link, ...]:
        """Between a GPU and its host; a copy inside the host reads and writes memory."""
        if src[0] == "gpu":
            return node.gpu_to_host(int(src[2]))
        if dst[0] == "gpu":
            return node.host_to_gpu(int(dst[2]))
        return (node.memory, node.memory)

    def _leave(self, src: Vertex) -> tuple[tuple[Link, ...], Member | None]:
        """Links by which host traffic leaves, and its fabric port; None: beyond the fabric."""
        if src[0] == "storage":
            return (self._store[1],), None
        node = self.node(int(src[1]))
        to_memory = node.gpu_to_host(int(src[2]))[:-1] if src[0] == "gpu" else ()
        return (*to_memory, *node.host_to_nic()), self._host_port(node)

    def _enter(self, dst: Vertex) -> tuple[tuple[Link, ...], Member | None]:
        """Links by which host traffic enters, and its fabric port; None: beyond the fabric."""
        if dst[0] == "storage":
            return (self._store[0],), None
        node = self.node(int(dst[1]))
        from_memory = node.host_to_gpu(int(dst[2]))[1:] if dst[0] == "gpu" else ()
        return (*node.nic_to_host(), *from_memory), self._host_port(node)

    def _host_port(self, node: NodeLinks) -> Member | None:
        own = node.spec.host_nic is not None or not self._in_fabric(node.index)
        return None if own else (node.index, 0)

    def _between(self, a: Member | None, b: Member | None) -> tuple[Link, ...]:
        """Links between two ports of host traffic."""
        if a and b:
            return self._across(a, b)
        plane = (self.backplane,) if self.backplane else ()
        star = self.fabric.kind == "star"
        if a:
            return (*(plane if star else (self._leaf(self._leaf_of(*a))[0],)), *self._join[:1])
        if b:
            return (*self._join[1:], *(plane if star else (self._leaf(self._leaf_of(*b))[1],)))
        return ()

    def _gpu_route(self, a: Member, b: Member) -> tuple[Link, ...]:
        """GPU to GPU: scale-up fabric inside an island, NICs between."""
        (n, i), (m, j) = a, b
        if a == b:
            return ()
        here, there = self.node(n), self.node(m)
        if here.nvlink_out and self.island[n] == self.island[m]:
            return (here.nvlink_out[i], there.nvlink_in[j])
        if n == m:
            return here.mesh_between(i, j) if here.mesh else here.pcie_between(i, j)
        nic_a, nic_b = here.nics_of_gpu[i][0], there.nics_of_gpu[j][0]
        first: tuple[Link, ...] = ()
        if self.fabric.kind == "rail_fat_tree" and nic_a != nic_b and here.nvlink_out:
            relay = next((g for g, near in enumerate(here.nics_of_gpu) if nic_b in near), i)
            if relay != i:
                first = (here.nvlink_out[i], here.nvlink_in[relay])
                i, nic_a = relay, nic_b
        across = self._across((n, nic_a), (m, nic_b))
        return (*first, *here.gpu_to_nic(i, nic_a), *across, *there.nic_to_gpu(nic_b, j))

    # ---- groups of GPUs --------------------------------------------------------------------------

    def islands(self, members: Iterable[Member]) -> list[list[Member]]:
        """Members by NVLink island (the host, or the NVLink domain), in order of appearance."""
        found: dict[int, list[Member]] = {}
        island = self.island
        for member in members:
            found.setdefault(island[member[0]], []).append(member)
        return list(found.values())

    def spread(self, members: Sequence[Member]) -> Spread:
        """Of what the cost of a collective among them depends on, all that is no spec's."""
        islands = self.islands(members)
        return Spread(
            ranks=len(members),
            islands=len(islands),
            per_island=max(map(len, islands)),
            near=min(len(self.nics_near(island)) for island in islands),
            latency_s=self.inter_node_latency_s(members),
        )

    def nics_near(self, members: Iterable[Member]) -> list[Member]:
        """(node, NIC) pairs that serve these GPUs, each once."""
        nics: dict[Member, None] = {}
        for n, i in members:
            for k in self.nics_of_gpu(n, i):
                nics[n, k] = None
        return list(nics)

    def nics_of_gpu(self, node: int, local: int) -> tuple[int, ...]:
        """NICs that serve one GPU: the same on every node of a spec."""
        spec = id(self.specs[node])
        if spec not in self._nics_of_gpu:
            self._nics_of_gpu[spec] = self.node(node).nics_of_gpu
        return self._nics_of_gpu[spec][local]

    def inter_node_latency_s(self, members: Iterable[Member]) -> float:
        """Largest latency between neighbouring islands of a ring; 0 for one island."""
        first = [group[0] for group in self.islands(members)]
        if len(first) < 2:
            return 0.0
        after = (*first[1:], first[0])
        return max(
            latency_s(self.path(("gpu", *a), ("gpu", *b)))
            for a, b in zip(first, after, strict=True)
        )

    def collective_loads(
        self,
        members: Sequence[Member],
        intra_bytes_per_rank: float,
        inter_bytes_per_node: float,
    ) -> dict[Link, float]:
        """Bytes that one execution of a collective puts on each link.

        Every member sends and receives ``intra_bytes_per_rank`` over its scale-up ports (NVSwitch:
        its port; mesh: its NVLinks to other members by width; PCIe: a ring in the order of
        members). Every island sends and receives ``inter_bytes_per_node`` over the NICs near its
        members in equal shares, by way of the members' PCIe links. Islands form a ring in the order
        of members; a hop that leaves a leaf switch loads its uplinks.
        """
        return self.sibling_loads((members,), intra_bytes_per_rank, inter_bytes_per_node)

    def sibling_loads(
        self,
        groups: Iterable[Sequence[Member]],
        intra_bytes_per_rank: float,
        inter_bytes_per_node: float,
    ) -> dict[Link, float]:
        """Sum of ``collective_loads`` over groups that run at once, as data-parallel ones do."""
        loads: dict[Link, float] = {}
        for members in groups:
            for link, inter, times, parts in self.shares(members):
                size_bytes = inter_bytes_per_node if inter else intra_bytes_per_rank
                if size_bytes:
                    loads[link] = loads.get(link, 0.0) + size_bytes * times / parts
        return loads

    def shares(self, members: Sequence[Member]) -> list[Share]:
        """What a collective of these puts on links, as ``collective_loads`` says, bit by bit."""
        islands = self.islands(members)
        found: list[Share] = []
        for group in islands:
            if len(group) > 1:
                self._intra(found, group, closed=len(islands) == 1)
        if len(islands) > 1:
            self._inter(found, islands)
        return found

    def _intra(self, found: list[Share], group: list[Member], *, closed: bool) -> None:
        """Scale-up part of one island; a PCIe ring is ``closed`` unless it leaves by a NIC."""
        node = self.node(group[0][0])
        if node.nvlink_out:
            for n, i in group:
                node = self.node(n)
                found.append((node.nvlink_out[i], False, 1.0, 1.0))
                found.append((node.nvlink_in[i], False, 1.0, 1.0))
            return
        local = [i for _, i in group]
        inside = set(local)
        for i, j in zip(local, local[1:] + local[:1], strict=True):
            if not node.mesh:
                if closed or j != local[0]:
                    found += [(link, False, 1.0, 1.0) for link in node.pcie_between(i, j)]
                continue
            peers = [(link, width) for k, link, width in node.mesh_rows[i] if k in inside]
            total = sum(width for _, width in peers)
            found += [(link, False, width, total) for link, width in peers]
            if not peers:
                found += [(link, False, 1.0, 1.0) for link in node.mesh_between(i, j)]

    def _inter(self, found: list[Share], islands: list[list[Member]]) -> None:
        """NICs, the PCIe links that feed them, and the fabric of the ring over islands."""
        nics = [self.nics_near(group) for group in islands]
        for group, near in zip(islands, nics, strict=True):
            parts = len(near)
            for n, k in near:
                node = self.node(n)
                found.append((node.nic_out[k], True, 1.0, parts))
                found.append((node.nic_in[k], True, 1.0, parts))
            parts = len(group)
            for n, i in group:
                node = self.node(n)
                ways: tuple[Link, ...] = (node.pcie_out[i], node.pcie_in[i])
                if not node.spec.nic.rdma:
                    ways = (*node.gpu_to_host(i), *node.host_to_gpu(i))
                found += [(link, True, 1.0, parts) for link in ways]
        for here, there in zip(nics, nics[1:] + nics[:1], strict=True):
            parts = len(here)
            for index, nic in enumerate(here):
                across = self._across(nic, there[index % len(there)])
                found += [(link, True, 1.0, parts) for link in across]


def links_of(node: NodeLinks) -> tuple[Link, ...]:
    """Every link of a node, in an order that nodes of one spec share."""
    port: list[Vertex] = [("port", k) for k in range(node.spec.nic_count)]
    return tuple(dict.fromkeys(link for _, _, link in node.edges(port, ("front",))))


def latency_s(path: Iterable[Link]) -> float:
    """Propagation along a route."""
    return sum(link.latency_s for link in path)
